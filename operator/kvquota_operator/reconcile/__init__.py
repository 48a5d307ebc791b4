"""The decisions of the operator: `reconcile(observed, now, wall) -> Plan`. Pure."""
