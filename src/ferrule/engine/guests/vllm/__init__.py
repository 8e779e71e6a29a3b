"""vLLM as a guest, from an environment of its own, with its tensors over the fabric."""
