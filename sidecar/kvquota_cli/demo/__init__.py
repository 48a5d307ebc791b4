"""`kvquota demo`: two tenants before one engine, one of them floods it."""
