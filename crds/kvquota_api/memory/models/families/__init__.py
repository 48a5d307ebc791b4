"""How each family of models lays out its caches: readers per kind of model, and tables of architectures."""
