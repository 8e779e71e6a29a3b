"""How stored weights are read and cut."""
