"""Attention that is not the usual one: what some families' modules need to run over batches of sequences."""
