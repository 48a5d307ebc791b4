"""kopf: what it calls (events of the two kinds, and the login), and its life in a thread of its own, begun anew when it
ends. Nothing here decides about pools, quotas or pods.
"""
