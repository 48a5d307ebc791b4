"""Memory arithmetic: what a model's weights and KV cache take on a card, by the engine's own rules. Pure."""
