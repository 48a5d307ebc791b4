"""The outside world, one module per thing: API server, pods, metrics, probes."""
