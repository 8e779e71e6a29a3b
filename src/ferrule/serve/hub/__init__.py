"""This host as a hub: models that it has downloaded, for other hosts."""
