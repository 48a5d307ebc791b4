"""Real Kubernetes for tests: its programs, an API server, a single node, and images for the node.

Each module is one real part; docs/testing.md says how they fit together.
"""
