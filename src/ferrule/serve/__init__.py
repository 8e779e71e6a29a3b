"""The OpenAI API over HTTP for a running engine."""

from ferrule.serve.server import listen, serve

__all__ = ["listen", "serve"]
