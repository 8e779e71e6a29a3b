"""Rank side of the engine: the code of a rank's process."""
