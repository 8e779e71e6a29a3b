"""What only the rank does that drives the others: requests, the choice of what runs next, tokens."""
