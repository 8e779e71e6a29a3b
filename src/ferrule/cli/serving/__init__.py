"""The commands of `ferrule serving`."""
