"""What agents and their callers tell each other."""

from __future__ import annotations

CONTROL = "{control}"
"""In the command of an order: the number of the descriptor of the process's control socket."""
