"""A served model whose ranks may be on emulated hosts: ``python served_process.py OPTIONS_JSON CABLES``.

OPTIONS_JSON: of `EngineOptions`. CABLES: switches to which each rank's host has a cable; 0: all ranks on this host. The
address of the server is the first line that it writes. Lines that it reads tell what cables do: ``cut CABLE HOST``,
``blackhole CABLE HOST`` and ``restore CABLE HOST``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from contextlib import ExitStack
from typing import Any

from ferrule.engine import EngineOptions, LocalEngine, start
from ferrule.lab import Lab, Topology, switch
from ferrule.serve.http.listener import listen
from ferrule.serve.server import serve


def obey(lab: Lab) -> None:
    for line in sys.stdin:
        what, cable, host = line.split()
        getattr(lab.cables[int(cable)], what)(int(host))
        tell("done")


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def run(options: EngineOptions, lab: Lab | None) -> None:
    listener = listen("127.0.0.1", 0, api_key=None, encrypted=False)

    def ready(_: Any) -> None:
        tell(f"http://127.0.0.1:{listener.getsockname()[1]}")

    async def begin() -> LocalEngine:
        return await start(options, lab=lab)

    await serve(begin, listener, api_key=None, on_ready=ready)


def main(told: str, cables: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    options = EngineOptions(**json.loads(told))
    with ExitStack() as stack:
        lab = None
        if int(cables):
            size = options.tensor * options.pipeline
            lab = stack.enter_context(Lab(Topology(size, switch(size).cables * int(cables))))
            threading.Thread(target=obey, args=(lab,), daemon=True).start()
        asyncio.run(run(options, lab))


if __name__ == "__main__":
    main(*sys.argv[1:])
