"""How config and identity come in, and how usage goes out.

Here: all that operator, kubelet and Prometheus ask of the admin port, the files that stand in for it, and what of it is
in force. No traffic of clients.
"""
