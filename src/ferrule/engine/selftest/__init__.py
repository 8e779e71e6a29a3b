"""A split model is compared with the same model computed in one piece, layer by layer, before it serves."""
