"""The command line of kvquota."""
