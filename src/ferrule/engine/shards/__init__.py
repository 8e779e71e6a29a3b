"""Weights for hosts without the model's files: each receives what its ranks hold, and keeps it for the next start."""
