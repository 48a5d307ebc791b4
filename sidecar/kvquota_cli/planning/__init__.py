"""What `kvquota plan` makes of its options, and how it shows a plan."""
