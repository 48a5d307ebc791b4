"""How each family of models lays out its caches: readers per kind of model, and the tables of architectures that `table` joins."""
