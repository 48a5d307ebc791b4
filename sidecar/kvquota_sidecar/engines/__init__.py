"""What engines say of themselves, read through one port.

Here: one module for each kind of engine, how they are asked, and what follows from their readings over time. No request
of a client: those go through `proxy`.
"""
