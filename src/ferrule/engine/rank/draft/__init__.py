"""The draft model of a rank: a small one, whole, that guesses tokens for the one that all ranks run."""
