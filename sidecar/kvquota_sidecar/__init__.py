"""The sidecar of kvquota: stands in front of one engine and keeps the ledger of its KV blocks.

Here: the program and its process (start, settings, supervisor, sockets, certificates), and `sidecar`, which alone puts
the packages together. `ledger`, `admission`, `estimate` and `refusals` decide; `proxy`, `channel` and `engines` speak
with clients, the operator and the engine; `telemetry` counts and logs.
"""
