"""GGUF checkpoints: their tensors as weights under the names of transformers' modules."""
