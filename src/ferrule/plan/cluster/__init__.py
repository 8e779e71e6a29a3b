"""What the planner knows of machines and cables."""
