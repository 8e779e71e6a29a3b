"""Families of models: what a `config.json` says of each layer, and the tensors that follow from it."""
