"""Images in prompts, on a rank."""
