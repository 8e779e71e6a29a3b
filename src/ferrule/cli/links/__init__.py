"""The commands of `ferrule links`."""
