"""Sampling: a token of each sequence from its logits, in host memory and on devices."""
