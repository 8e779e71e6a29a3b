"""llama.cpp as a guest: ``llama-server``, and ``rpc-server`` for each stage of a plan that has several."""
