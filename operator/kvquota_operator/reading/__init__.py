"""From objects as the API server (or a YAML file) has them, and from reports of pods, to what a reconcile observes.

Pure.
"""
