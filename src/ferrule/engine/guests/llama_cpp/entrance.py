"""The program that leads llama.cpp to workers on other hosts: ``python -m …entrance ADDRESS:PORT…``.

It listens on loopback, at a port for each, and prints `READY` and these ports. The key is as `worker` has it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from ferrule.cluster.tunnel import near_end
from ferrule.config import parse_address
from ferrule.engine.guests.llama_cpp.worker import KEY, say_ready


async def run(places: Sequence[str]) -> None:
    key = bytes.fromhex(os.environ.pop(KEY))
    ends = [await near_end(key, parse_address(place, "address")) for place in places]
    ports = ",".join(str(end.sockets[0].getsockname()[1]) for end in ends)
    say_ready(ports)
    await asyncio.gather(*(end.serve_forever() for end in ends))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
