"""What a model is, as far as its memory depends on it: read from its Hugging Face config.json."""
