"""Whether a request may take what it asks: check all, then take all. Pure."""
