"""One rank of the fabric benchmark. Run by `ferrule.bench.fabric`: ``python -m ferrule.bench.fabric_rank CONFIG``."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

import ferrule.fabric as fabric
from ferrule import _native

_RAW_ROUNDS = 200
_RAW_TIMEOUT = 20.0

Call = Callable[[Any], Any]


def main(config_path: str) -> None:
    config = json.loads(Path(config_path).read_text())
    with fabric.init(transport="tcp", timeout=config["timeout"]) as group:
        calls = _implementations(group, config)
        rows = [row for size in config["sizes"] for row in _measure(group, calls, size, config["rounds"])]
        raw = _raw_limits(group, config["sizes"])
        if group.rank == 0:
            Path(config["out"]).write_text(json.dumps({"rows": rows, "raw": raw}))
        group.barrier()


def _implementations(group: fabric.Group, config: dict[str, Any]) -> dict[tuple[str, str], Call]:
    """What to compare, by implementation and transport: a function that all-reduces an array in place."""
    calls: dict[tuple[str, str], Call] = {}
    for transport in config["transports"]:
        member = group.split(0, group.rank, transport=transport)
        assert member is not None
        calls["ferrule", transport] = member.all_reduce
    if config["gloo"]:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        dist.init_process_group(
            "gloo",
            init_method=f"file://{config['store']}",
            rank=group.rank,
            world_size=group.size,
            timeout=timedelta(seconds=config["timeout"]),
        )
        calls["gloo", "tcp"] = dist.all_reduce
    return calls


def _measure(
    group: fabric.Group, calls: dict[tuple[str, str], Call], size: int, rounds: dict[str, int]
) -> list[dict[str, Any]]:
    """Every implementation in turn, a few calls each, many times over: what disturbs one disturbs all."""
    x: Any = np.zeros(size // 4, dtype=np.float32)
    if ("gloo", "tcp") in calls:
        import torch

        x = torch.from_numpy(x)
    times: dict[tuple[str, str], list[float]] = {which: [] for which in calls}
    batch = 30 if size <= 1 << 16 else 4 if size <= 1 << 22 else 1
    for turn in range(rounds[str(size)] + 1):
        for which, call in calls.items():
            group.barrier()
            for _ in range(batch):
                begin = time.perf_counter_ns()
                call(x)
                elapsed = time.perf_counter_ns() - begin
                if turn:  # the first turn warms up caches, buffers and TCP windows
                    times[which].append(elapsed / 1000)
    return [
        {
            "op": "all_reduce",
            "bytes": size,
            "dtype": "float32",
            "transport": transport,
            "ranks": group.size,
            "impl": impl,
            "min_us": round(min(samples), 2),
            "median_us": round(float(np.median(samples)), 2),
            "p99_us": round(float(np.percentile(samples, 99)), 2),
        }
        for (impl, transport), samples in times.items()
    ]


def _raw_limits(group: fabric.Group, sizes: list[int]) -> dict[str, dict[str, float]]:
    """What cannot be beaten: one way over a busy-polled socket, and one copy in memory. Minima in microseconds."""
    limits: dict[str, dict[str, float]] = {}
    if group.rank > 1:
        return limits
    with _raw_socket(group) as sock:
        for size in sizes:
            source, target = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
            copies = []
            for _ in range(20):
                begin = time.perf_counter_ns()
                np.copyto(target, source)
                copies.append((time.perf_counter_ns() - begin) / 1000)
            rounds = max(3, min(_RAW_ROUNDS, (64 << 20) // max(size, 1)))
            pings = _native.raw_ping_pong(sock.fileno(), size, rounds, group.rank == 0, _RAW_TIMEOUT)
            limits[str(size)] = {"tcp": round(min(pings), 2), "memcpy": round(min(copies), 2)}
    return limits


def _raw_socket(group: fabric.Group) -> socket.socket:
    port = np.zeros(1, np.int64)
    if group.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port[0] = listener.getsockname()[1]
            group.send(port, 1)
            listener.settimeout(_RAW_TIMEOUT)
            sock = listener.accept()[0]
    else:
        group.recv(port, 0)
        sock = socket.create_connection(("127.0.0.1", int(port[0])), timeout=_RAW_TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


if __name__ == "__main__":
    main(sys.argv[1])
