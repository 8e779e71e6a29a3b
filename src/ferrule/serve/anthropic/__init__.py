"""Anthropic's API: messages, counting of their tokens, models."""
