"""What runs beside the server: the ranks' processes, requests and recovery."""
