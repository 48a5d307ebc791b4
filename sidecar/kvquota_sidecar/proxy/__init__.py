"""The data path: connections of clients and of the engine, and what goes between them.

Here: HTTP as it is spoken on both sides, and one request from its first byte to its last. What it may take is estimated
and decided elsewhere (`estimate`, `ledger`), and who a client is by `identity`.
"""
