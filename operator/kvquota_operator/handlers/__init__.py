"""What kopf calls: events of the two kinds, and the login. It decides nothing."""
