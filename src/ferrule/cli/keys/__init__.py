"""``ferrule keys``."""
