"""HTTP itself: sockets, connections and their limits, TLS, access, errors."""
