"""LoRA adapters in a rank: their matrices cut as the layers that they change, and added to what these compute."""
