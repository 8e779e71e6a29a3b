"""Find the best layouts."""
