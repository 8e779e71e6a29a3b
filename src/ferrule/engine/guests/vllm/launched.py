"""One host of a vLLM whose processes `ferrule launch` starts, over ssh or by agents: when one ends, all do.

``ferrule launch --cluster -m ferrule.engine.guests.vllm.launched MODEL OPTIONS…``: options are those of ``vllm serve``.
What vLLM has to know of the hosts follows from the launcher's variables, which follow from the cables that were found.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from ferrule.engine.guests.environments import environment_of, find_environment, python_of
from ferrule.engine.guests.environments.installer import not_installed
from ferrule.engine.guests.environments.own_package import outdated
from ferrule.engine.guests.vllm.nodes import PROGRAM, over_fabric
from ferrule.errors import ConfigError, FerruleError

KEY = "FERRULE_VLLM_KEY"
"""Of the fabric, where an agent has started this as a job of its own, with another key in ``FERRULE_KEY``."""
_OURS = ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless", "--distributed-executor-backend")
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK")
"""Of the launcher's ranks, which are hosts here; vLLM numbers its own."""
_ANY_PORT = 9


def command(
    environ: Mapping[str, str],
    options: Sequence[str],
    python: Path,
    address_toward: Callable[[str], str],
    interface_of: Callable[[str], str | None],
) -> tuple[list[str], dict[str, str]]:
    """What this host runs, and its environment. ``address_toward``: this host's, on the way to another one;
    ``interface_of``: with an address. Raises `ConfigError`."""
    try:
        number, hosts = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        alone = int(environ["LOCAL_WORLD_SIZE"]) == 1
        address, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"this is started by ferrule launch, which sets {error}; see docs/engines/vllm.md") from None
    if not alone:
        raise ConfigError("vLLM starts the ranks of a host itself: give ferrule launch one rank for each, such as a,b")
    for option in options:
        if option.partition("=")[0] in _OURS:
            raise ConfigError(f"{option.partition('=')[0]} follows from the hosts; leave it out")
    line = [str(python), *PROGRAM, *options, "--distributed-executor-backend", "mp"]
    if hosts > 1:
        line += ["--nnodes", str(hosts), "--node-rank", str(number), "--master-addr", address, "--master-port", port]
        line += ["--headless"] if number else []
    own = address if number == 0 else address_toward(address)
    changed = over_fabric(environ) | {"VLLM_HOST_IP": own, KEY: None}
    if KEY in environ:
        changed["FERRULE_KEY"] = environ[KEY]
    if not environ.get("GLOO_SOCKET_IFNAME"):
        changed["GLOO_SOCKET_IFNAME"] = interface_of(own)
    whole = {**{name: value for name, value in environ.items() if name not in _OF_RANKS}, **changed}
    return line, {name: value for name, value in whole.items() if value is not None}


def main(options: Sequence[str]) -> None:
    """Become vLLM."""
    ours = environment_of("vllm")
    found = find_environment(ours)
    if found is None or outdated(found):
        raise not_installed(ours)
    line, environ = command(os.environ, options, python_of(ours), address_toward, interface_of)
    os.execve(line[0], line, environ)


def address_toward(host: str) -> str:
    """This host's address on the way to ``host``. Raises `OSError`."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # sends nothing
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of the interface with ``address``; None where there is none."""
    faces = psutil.net_if_addrs().items()
    return next((name for name, found in faces if any(each.address == address for each in found)), None)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (FerruleError, OSError) as error:
        sys.exit(f"error: {error}")
