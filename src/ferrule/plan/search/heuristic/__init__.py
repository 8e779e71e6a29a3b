"""Search of layouts over many hosts, or hosts that relay for each other."""
