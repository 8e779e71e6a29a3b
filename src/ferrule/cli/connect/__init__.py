"""``ferrule connect``: what points a client at a server, written into its settings and taken back."""
