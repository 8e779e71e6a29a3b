"""Images in prompts, beside the server: files to what the model's processor makes of them."""
