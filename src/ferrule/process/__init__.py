"""Start, hold, watch and end processes."""
