"""How config and identity come in, and how usage goes out."""
