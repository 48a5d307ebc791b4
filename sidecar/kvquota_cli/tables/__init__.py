"""Objects as `kubectl get` prints them, by the columns of their CRD."""
