"""What links were measured to do: the numbers, the file in which they are kept, and what they say about a link."""
