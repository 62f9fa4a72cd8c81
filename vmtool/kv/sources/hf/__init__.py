"""Hugging Face ``config.json``: which layers a model has, and what each keeps."""
