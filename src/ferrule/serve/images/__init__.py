"""Images in requests: taken from data URLs and from https, checked, and told to the model's chat template."""
