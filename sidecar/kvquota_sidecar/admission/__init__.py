"""Whether a request may take what it asks: check all, then take all. Pure.

Here: decisions as functions of values (`case`), the lines and thresholds that they go by, and their words. No state:
what a decision changes is the ledger's.
"""
