"""Readers of stored weights, and slicing of tensors for ranks."""
