"""Prompts computed by one group of ranks for another: their keys and values go over layer by layer."""
