"""Models that the cluster wants served: which host serves them, and the processes that do."""
