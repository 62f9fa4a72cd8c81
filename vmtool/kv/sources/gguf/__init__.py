"""GGUF files: their metadata, and what llama.cpp makes of it."""
