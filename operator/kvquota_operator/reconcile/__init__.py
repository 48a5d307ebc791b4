"""The decisions of the operator: `reconcile(observed, now, wall, plan_of) -> Plan`. Pure."""
