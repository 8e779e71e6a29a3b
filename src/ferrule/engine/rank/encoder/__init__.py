"""Encoders: models that take a text whole and give hidden states, through transformers' modules."""
