"""Answers to requests for text, whatever API they came by: from a prompt to tokens, text, parts, and what is sent."""
