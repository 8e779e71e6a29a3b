"""Search of all layouts over a few hosts."""
