"""Two groups of ranks behind one engine: one computes prompts, the other answers."""
