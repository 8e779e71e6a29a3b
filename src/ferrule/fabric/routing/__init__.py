"""Choice of the path and of the algorithm for a message."""
