"""Measure engines side by side: decode, prefill and serving, by format of the weights."""
