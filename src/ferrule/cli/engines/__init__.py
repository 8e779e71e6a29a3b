"""The commands of `ferrule engines`."""
