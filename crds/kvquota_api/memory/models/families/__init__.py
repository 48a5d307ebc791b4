"""How each family of models lays out its caches: one reader per kind of model, one table of architectures."""
