"""TCP over every pair of interfaces that two hosts share."""
