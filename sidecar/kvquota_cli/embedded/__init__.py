"""Embedded mode: the operator's reconcile and the sidecar in one process, with a folder of files for a cluster."""
