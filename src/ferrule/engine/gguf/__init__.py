"""Tokenizers, chat templates and defaults of generation out of the metadata of GGUF files."""
