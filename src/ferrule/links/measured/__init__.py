"""Measured links: the numbers, the file in which they are kept, and the findings on a link from them."""
