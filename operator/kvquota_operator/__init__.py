"""The operator of kvquota: decides what every pod may hold, and reports what it holds."""
