"""What is kept of sequences on this rank: their keys, values and states, each by itself or in pages of one memory."""
