"""The contract of kvquota: resources, units, and the documents of the channel. Pure."""
