"""Ollama's API over the same models."""
