"""Ray client process of a launcher: lists Ray's nodes, or is the connection to a supervisor on one of them.

``nodes PLACE`` lists the nodes as JSON, ``to PLACE NODE ADDRESS CPUS GPUS`` is the connection. When it ends, however it
ends, so do the ranks there.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ferrule.launch.ray_end import RayEnd
from ferrule.launch.ray_nodes import RayHost

START_SECONDS = 25.0
_END_SECONDS = 5.0
_CHUNK = 1 << 16


def nodes(place: str) -> list[RayHost]:
    """Those that live, the one of this host first."""
    _connect(place)
    here = ray.get_runtime_context().get_node_id()
    found = [
        RayHost(
            node=each["NodeID"],
            name=each.get("Labels", {}).get("ferrule_host") or each["NodeManagerHostname"],
            address=each["NodeManagerAddress"],
            cpus=int(each["Resources"].get("CPU", 0)),
            gpus=int(each["Resources"].get("GPU", 0)),
        )
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda each: (each.node != here, each.name, each.address))


def carry(place: str, node: str, address: str, cpus: int, gpus: int) -> int:
    """Until the supervisor has ended."""
    _connect(place)
    end = (
        ray.remote(RayEnd)
        .options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        )
        .remote(address)
    )
    try:
        ray.get(end.ready.remote(), timeout=START_SECONDS)
    except ray.exceptions.GetTimeoutError:
        _tell(f"Ray did not give {cpus} CPUs and {gpus} GPUs there within {START_SECONDS:g} s: see ray status")
        return 1
    # Which thread ends first does not matter: the launcher hears of the end by this process's.
    threading.Thread(target=_listen, args=(end,), daemon=True).start()
    errors = threading.Thread(target=_pass_on, args=(end.read_errors, 2), daemon=True)
    errors.start()
    _pass_on(end.read, 1)
    errors.join(_END_SECONDS)
    ray.shutdown()
    return 0


def _connect(place: str) -> None:
    ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)


def _listen(end: Any) -> None:
    with suppress(ray.exceptions.RayError, OSError):
        while True:
            data = os.read(0, _CHUNK)
            ray.get(end.write.remote(data))
            if not data:
                return


def _pass_on(method: Any, sink: int) -> None:
    while data := ray.get(method.remote()):
        while data:
            data = data[os.write(sink, data) :]


def _tell(message: str) -> None:
    os.write(2, message.encode() + b"\n")


def main(what: str, place: str, *more: str) -> int:
    try:
        if what == "nodes":
            os.write(1, msgspec.json.encode(nodes(place)) + b"\n")
            return 0
        node, address, cpus, gpus = more
        return carry(place, node, address, int(cpus), int(gpus))
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        _tell(" ".join(str(error).split()))
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
