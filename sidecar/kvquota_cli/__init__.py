"""The command line of kvquota.

Here: the options, and what a command works out (`commands` has one module for each). It decides nothing of its own:
quotas are the operator's, requests the sidecar's, memory `kvquota_api`'s.
"""
