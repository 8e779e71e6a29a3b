"""Listening socket of a server. It imports no web framework, so that a taken port is told at once."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from ferrule.errors import ConfigError


def listen(host: str, port: int, *, api_key: str | None, encrypted: bool, keyed: bool = False) -> socket.socket:
    """A listening socket on ``host``:``port`` (0 for any free port), so that a taken port is noticed before loading.

    Raises `ConfigError` when the address is unknown, taken or not allowed, and when ``host`` can be reached from
    other machines although there is no ``api_key``, nor are requests ``keyed`` by others, or it is not ``encrypted``.
    """
    family, address = _resolve(host, port)
    if not ip_address(address[0].partition("%")[0]).is_loopback:
        if api_key is None and not keyed:
            raise ConfigError(
                f"serving on {host} lets other machines in, which needs a key: make one by `ferrule keys create NAME`, "
                "set FERRULE_API_KEY or --api-key, or stay on this machine with --host 127.0.0.1"
            )
        if not encrypted:
            raise in_the_clear(host)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(_cannot_listen(error, host, port)) from error
    return listener


def in_the_clear(host: str) -> ConfigError:
    return ConfigError(
        f"serving on {host} without TLS sends the key and all prompts in the clear: say --tls-self, give a certificate "
        "(--ssl-certfile and --ssl-keyfile, see docs/serve.md), or say --plain-http on a network that you trust"
    )


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise ConfigError(f"the host {host!r} is not known ({error}); choose another with --host") from error
    # IPv4 first: it is what clients mean when they connect to "localhost".
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _cannot_listen(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use on {host}; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} may not be opened by this user; choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine; choose another with --host"
    return f"cannot listen on {host} port {port}: {error.strerror}; choose others with --host and --port"
