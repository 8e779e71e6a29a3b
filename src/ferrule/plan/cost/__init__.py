"""Predict time and memory of a layout."""
