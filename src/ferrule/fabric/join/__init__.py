"""How the ranks of a job find, check and keep each other."""
