"""The sidecar of kvquota: stands in front of one engine and keeps the ledger of its KV blocks."""
