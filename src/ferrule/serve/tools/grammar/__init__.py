"""Grammars of whole answers in a model's own format: reasoning, then calls of tools, JSON or text."""
