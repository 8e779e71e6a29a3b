"""The commands of `ferrule bench`."""
