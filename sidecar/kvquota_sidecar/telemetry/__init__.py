"""What people read of the sidecar: the numbers that it counts, its metrics, and its log lines.

Nothing here decides anything.
"""
