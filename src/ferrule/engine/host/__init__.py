"""Host side of the engine, beside the server: the ranks' processes, requests and recovery."""
