"""API keys: names, models allowed, limits and expiry, in a file that the server watches."""
