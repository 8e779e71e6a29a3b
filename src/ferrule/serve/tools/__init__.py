"""Tools and reasoning: in requests, and in what models write. One reader for streams and whole answers, one format for
each family of models."""
