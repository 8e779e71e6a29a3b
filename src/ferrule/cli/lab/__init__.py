"""The commands of `ferrule lab`."""
