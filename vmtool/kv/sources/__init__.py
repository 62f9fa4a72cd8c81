"""Where a model's geometry comes from: configs, GGUF, ONNX, the hub, or the built-in table."""
