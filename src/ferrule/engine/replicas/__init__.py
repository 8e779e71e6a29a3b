"""Whole copies of a model behind one engine: which one answers a request, and what becomes of it when that is lost."""
