"""Formats of stored weights: how a tensor of the model is recognised, read, cut and multiplied."""

from ferrule.engine.weights.formats.format import Format, StoredTensors, Weight
from ferrule.engine.weights.formats.registry import FORMATS, known_methods, recognise

__all__ = ["FORMATS", "Format", "StoredTensors", "Weight", "known_methods", "recognise"]
