"""The commands of `ferrule kmod`."""
