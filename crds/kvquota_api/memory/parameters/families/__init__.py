"""How the weights of each family of models are built from its config."""
