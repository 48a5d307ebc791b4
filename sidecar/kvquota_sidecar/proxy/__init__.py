"""The data path: connections of clients and of the engine, and what goes between them."""
