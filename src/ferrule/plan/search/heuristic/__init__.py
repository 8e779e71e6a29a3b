"""Search of plans over many hosts, or hosts that relay for each other."""
