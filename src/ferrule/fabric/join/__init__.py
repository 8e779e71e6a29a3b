"""Membership of a job: its ranks find, check and keep each other."""
