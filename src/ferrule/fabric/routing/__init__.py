"""Which path and which algorithm a message takes."""
