"""KV-cache arithmetic: models, packing policies, capacity, traces."""
