"""Manifests in files: YAML with the places of its fields, Secrets, and what is wrong with them."""
