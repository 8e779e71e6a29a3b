"""Models that one address serves, by the names that requests give."""

from ferrule.serve.models.names import Aliases, check_names, names_of
from ferrule.serve.models.one import OneModel
from ferrule.serve.models.protocol import Models

__all__ = ["Aliases", "Models", "OneModel", "check_names", "names_of"]
