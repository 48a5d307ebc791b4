"""What a request will take, before the engine says so: its shape, its tokens, its output; and its text. Pure.

Here: everything that knows the fields of a body, also to change them, and what is learnt of earlier ones. No blocks:
what tokens cost is the ledger's.
"""
