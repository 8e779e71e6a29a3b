"""The commands of `ferrule doctor`."""
