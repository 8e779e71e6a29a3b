"""The OpenAI API over HTTP for a running engine: `ferrule.serve.listener`, then `ferrule.serve.server`."""
