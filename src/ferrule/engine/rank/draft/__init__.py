"""What guesses for the model that all ranks run, whole on the driver's rank: a small model, or a layer of its own."""
