"""The books: who holds how many KV blocks of one engine, and who may take more. Pure."""
