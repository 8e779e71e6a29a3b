"""Environments of Python for engines whose packages do not go together with Ferrule's own."""

from ferrule.engine.guests.environments.environment import Environment, find_environment, python_of
from ferrule.engine.guests.environments.installer import check, install, remove
from ferrule.engine.guests.environments.known import KNOWN, environment_of

__all__ = ["KNOWN", "Environment", "check", "environment_of", "find_environment", "install", "python_of", "remove"]
