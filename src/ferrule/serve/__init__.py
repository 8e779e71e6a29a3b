"""APIs over HTTP for running models: `ferrule.serve.http.listener` opens a socket, `ferrule.serve.server` serves."""
