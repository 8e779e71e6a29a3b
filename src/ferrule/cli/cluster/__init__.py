"""The commands of `ferrule cluster`."""
