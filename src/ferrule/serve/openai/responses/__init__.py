"""OpenAI's Responses API: items in, items out, told by named events, and kept for the next request."""
