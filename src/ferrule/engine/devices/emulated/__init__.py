"""An accelerator in host memory that is harsher than a real one, for tests and for work on the engine without a GPU."""
