"""Which Hugging Face architectures are known, in tables."""
