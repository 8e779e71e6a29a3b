"""The commands of `ferrule plan`."""
