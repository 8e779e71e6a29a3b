"""The background process that holds a lab: its directory and lock, the server in it, and the client of commands."""
