"""From objects as the API server (or a YAML file) has them to what a reconcile observes. Pure."""
