"""What engines say of themselves, read through one port."""
