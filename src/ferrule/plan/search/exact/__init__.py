"""Search of all plans over a few hosts."""
