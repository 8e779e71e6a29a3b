"""The OpenAI API over HTTP for a running engine."""

from ferrule.serve.app import create_app
from ferrule.serve.server import listen, serve

__all__ = ["create_app", "listen", "serve"]
