"""Process that serves one record of a cluster on this host: ``python -m ferrule.agent.models.process DIRECTORY NAME``.

The agent starts it, keeps it running, and is told how it is.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ferrule.agent.log import log_to
from ferrule.agent.models.server import AddressServer, ModelServer
from ferrule.agent.models.several import SeveralServer
from ferrule.cluster.client import ask_here
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetModels
from ferrule.errors import ClusterError, FerruleError


async def _run(home: ClusterHome, name: str) -> None:
    desired = next((each.wanted for each in await ask_here(home, GetModels()) if each.name == name), None)
    if desired is None:
        raise ClusterError(f"no model {name!r} is to be served on this host")
    make: type[AddressServer[Any]] = SeveralServer if desired.models else ModelServer
    await make(home, name, desired).run()


def main(arguments: Sequence[str]) -> int:
    directory, name = Path(arguments[0]), arguments[1]
    log_to(None)
    for chatty in ("httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    home = ClusterHome(directory.name, directory.parent)
    try:
        asyncio.run(_run(home, name))
    except FerruleError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
