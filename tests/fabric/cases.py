"""Program of the ranks in the fabric's tests: ``python cases.py CASE[+CASE...] ARGUMENTS`` in a launcher's environment.

Several cases follow each other in one group: a process takes longer to start than most of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from exact_calls import CALLS, DTYPES, OPS, all_bfloat16, exact_inputs
from expected import cases_of, make_input, reduced

from ferrule import _native, fabric
from ferrule.errors import FerruleError
from ferrule.fabric import Group
from ferrule.fabric.join import hosts

MISMATCH_CALLS: dict[str, Callable[[Group], Any]] = {
    "all_reduce 64": lambda group: group.all_reduce(np.zeros(16, np.float32)),
    "all_reduce 128": lambda group: group.all_reduce(np.zeros(32, np.float32)),
    "all_reduce int": lambda group: group.all_reduce(np.zeros(16, np.int32)),
    "all_reduce max": lambda group: group.all_reduce(np.zeros(16, np.float32), "max"),
    "all_reduce big": lambda group: group.all_reduce(np.zeros(1 << 20, np.float32)),
    "all_gather": lambda group: group.all_gather(np.zeros(16, np.float32)),
    "broadcast from 0": lambda group: group.broadcast(np.zeros(16, np.float32), 0),
    "broadcast from 1": lambda group: group.broadcast(np.zeros(16, np.float32), 1),
    "barrier": lambda group: group.barrier(),
    "send 4": lambda group: group.send(np.zeros(4, np.uint8), 1 - group.rank),
    "recv 8": lambda group: group.recv(np.zeros(8, np.uint8), 1 - group.rank),
}


def report(**fields: Any) -> None:
    os.write(int(os.environ["REPORT_FD"]), (json.dumps(fields) + "\n").encode())


def attempt(action: Callable[[], Any]) -> None:
    """Do it and report how it ended and when."""
    begin = time.monotonic()
    try:
        action()
    except (FerruleError, KeyboardInterrupt, ValueError, TypeError) as error:
        now = time.monotonic()
        report(error=type(error).__name__, text=str(error), at=now, took=now - begin, rank=getattr(error, "rank", None))
    else:
        report(error=None, took=time.monotonic() - begin)


def sweep(group: Group, arguments: dict[str, Any]) -> None:
    """Reductions and gathers of many sizes and types against numpy; reports a digest of all results."""
    digest = hashlib.sha256()
    for number, case in enumerate(cases_of(arguments["seed"], arguments["count"])):
        inputs = [make_input(case, number, rank) for rank in range(group.size)]
        x = inputs[group.rank].copy()
        returned = group.all_reduce(x, case.op)
        assert returned is x
        wanted = reduced(inputs, case.op)
        assert x.tobytes() == wanted.tobytes(), f"all_reduce {case}: {x[:4]} instead of {wanted[:4]}"
        digest.update(x.tobytes())

        gathered = group.all_gather(inputs[group.rank])
        assert gathered.tobytes() == b"".join(part.tobytes() for part in inputs), f"all_gather {case}"

        blocks = [np.tile(part, (group.size, 1)) for part in inputs]
        scattered = group.reduce_scatter(blocks[group.rank], case.op)
        assert scattered.shape == (1, case.size)
        assert scattered.tobytes() == wanted.tobytes(), f"reduce_scatter {case}"

        root = number % group.size
        y = inputs[group.rank].copy()
        group.broadcast(y, root)
        assert y.tobytes() == inputs[root].tobytes(), f"broadcast {case}"
    report(digest=digest.hexdigest())


def every_collective(group: Group, arguments: dict[str, Any]) -> None:
    """All operations, types and reductions; reports the bits of a sum that is rounded, too.

    With ``bfloat16`` that type as well: it takes torch, which every rank needs seconds to import.
    """
    number = 0
    for dtype in DTYPES:
        for size in arguments["sizes"]:
            inputs = exact_inputs(size, dtype, size, group.size)
            for call in CALLS:
                number += 1
                call(group, inputs, number % group.size, list(OPS)[number % len(OPS)])
    for size in arguments["sizes"] if arguments.get("bfloat16") else ():
        for op in OPS:
            all_bfloat16(group, exact_inputs(size, "float32", size, group.size), size % group.size, op)
    rounded = np.random.default_rng(group.rank).standard_normal(100_003).astype(np.float32)
    group.all_reduce(rounded)
    report(digest=hashlib.sha256(rounded.tobytes()).hexdigest(), text=str(group.describe()))


def torch_types(group: Group, arguments: dict[str, Any]) -> None:
    """Tensors of every type, bfloat16 against a float32 reference that rounds once."""
    import torch

    for dtype in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    ):
        for size in (1, 17, 4096, 100_001):
            parts = []
            for rank in range(group.size):
                generator = torch.Generator().manual_seed(1000 * rank + size)
                parts.append((torch.randn(size, generator=generator) * 8).to(dtype))
            wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
            total = parts[0].to(wide)
            for part in parts[1:]:
                total = total + part.to(wide)
            x = parts[group.rank].clone()
            assert group.all_reduce(x) is x
            assert torch.equal(x, total.to(dtype)), (dtype, size)
            gathered = group.all_gather(parts[group.rank])
            assert torch.equal(gathered, torch.cat(parts))
    flags = torch.arange(7) % group.size == group.rank
    assert group.all_reduce(flags.clone(), "max").all()
    assert not group.all_reduce(flags.clone(), "min").any() or group.size == 1
    scalar = group.all_gather(torch.tensor(float(group.rank)))
    assert scalar.tolist() == [float(rank) for rank in range(group.size)]
    special = torch.tensor([float("nan"), float("inf"), 1e-8, -0.0], dtype=torch.bfloat16)
    group.all_reduce(special, "max")
    assert special[0].isnan()
    assert special[1].isinf()
    parameter = torch.nn.Parameter(torch.ones(3))
    group.all_reduce(parameter)
    assert parameter.tolist() == [float(group.size)] * 3
    report(done=True)


def point_to_point(group: Group, arguments: dict[str, Any]) -> None:
    """Messages in a ring of ranks: order, odd sizes, longer than any buffer, and many small ones sent ahead."""
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sizes = [1, 0, 3, 4097, 65_537, 1_000_003, 7, 3_000_001]

    def message(rank: int, number: int) -> np.ndarray[Any, Any]:
        return (np.arange(sizes[number]) * (rank + 3) + number).astype(np.uint8)

    for number in range(len(sizes)):
        x = np.empty(sizes[number], np.uint8)
        if group.rank == 0:
            group.send(message(0, number), after)
            group.recv(x, before)
        else:
            group.recv(x, before)
            group.send(message(group.rank, number), after)
        assert x.tobytes() == message(before, number).tobytes()
    # A scheduler sends descriptions of many steps before the others look: 200 KiB must fit without a receiver.
    for number in range(100):
        group.send(np.full(2000, number, np.uint8), after, timeout=1)
    group.send(np.full(50_000, 7, np.uint8), after, timeout=1)
    for number in range(100):
        x = np.empty(2000, np.uint8)
        group.recv(x, before)
        assert (x == number).all()
    group.recv(np.empty(50_000, np.uint8), before)
    # Broadcasts run ahead too: the root must not wait for the others.
    for number in range(20):
        group.broadcast(np.full(1000, number), 0, timeout=5)
    report(done=True)


def splits(group: Group, arguments: dict[str, Any]) -> None:
    half = group.split(group.rank % 2, key=-group.rank)
    assert half is not None
    members = [rank for rank in range(group.size) if rank % 2 == group.rank % 2][::-1]
    assert (half.size, members[half.rank]) == (len(members), group.rank)
    assert half.all_gather(np.array(group.rank)).tolist() == members
    other = group.split(None if group.rank == 0 else 7)
    assert (other is None) == (group.rank == 0)
    if other is not None:
        # Groups do not disturb each other, in whatever order their operations come.
        if other.size > 1 and other.rank == 0:
            other.send(np.array([42]), 1)
        x = half.all_reduce(np.array([1]))
        assert x[0] == half.size
        if other.size > 1 and other.rank == 1:
            assert other.recv(np.array([0]), 0)[0] == 42
        smaller = other.split(other.rank, transport="tcp")
        assert smaller is not None
        assert smaller.size == 1
    else:
        half.all_reduce(np.array([1]))
    over_tcp = group.split(0, group.rank, transport="tcp")
    assert over_tcp is not None
    assert over_tcp.describe().transports == ("tcp" if group.size > 1 else "self")
    over_tcp.barrier()
    group.barrier()
    report(transports=group.describe().transports, text=str(group.describe()))


def mismatch(group: Group, arguments: dict[str, Any]) -> None:
    attempt(lambda: MISMATCH_CALLS[arguments["calls"][group.rank]](group))
    # The first cause stays.
    attempt(lambda: group.barrier())


def deadline(group: Group, arguments: dict[str, Any]) -> None:
    """Every rank waits for a message that none sends."""
    attempt(lambda: group.recv(np.empty(4, np.uint8), (group.rank + 1) % group.size, timeout=0.3))


def lost(group: Group, arguments: dict[str, Any]) -> None:
    """All but the last rank wait for the last one, which does nothing until it is killed."""
    group.barrier()
    report(ready=True)
    if group.rank == group.size - 1:
        signal.pause()
    x = np.zeros(arguments.get("size", 1000), np.float32)
    if arguments["op"] == "recv":
        attempt(lambda: group.recv(x, group.size - 1))
    else:
        attempt(lambda: group.all_reduce(x))
    attempt(lambda: group.barrier())


def steadily(group: Group, arguments: dict[str, Any]) -> None:
    """Large and small reductions for so many seconds, every number checked."""
    group.barrier()
    report(ready=True)
    begin, count = time.monotonic(), 0
    counted = np.arange(1 << 20, dtype=np.int32)
    more = True
    while more:
        x = counted + group.rank + count
        group.all_reduce(x)
        assert (x == group.size * (counted + count) + sum(range(group.size))).all(), count
        count += 1
        done = np.array([time.monotonic() - begin > arguments["seconds"]], np.int32)
        more = not group.all_reduce(done, "max")[0]
    report(count=count)


def idle(group: Group, arguments: dict[str, Any]) -> None:
    """All ranks are idle, and watch what becomes of the group."""
    group.barrier()
    report(ready=True)
    begin = time.monotonic()
    while time.monotonic() < begin + arguments.get("seconds", 20.0):
        try:
            group.check()
        except FerruleError:
            break
        time.sleep(0.005)
    attempt(group.check)
    attempt(lambda: group.barrier(timeout=5))


def reform(group: Group, arguments: dict[str, Any]) -> None:
    """Reductions go on for ever; whenever a rank is lost, those that are left make a new group and go on."""
    report(ready=True)
    first = list(range(group.size))  # who the group's ranks were in the beginning
    while group.size > arguments["least"]:
        try:
            while True:
                x = group.all_reduce(np.ones(arguments.get("size", 100), np.float32))
                assert (x == group.size).all()
        except FerruleError as error:
            cause = str(error)
        try:
            group = group.reform(timeout=arguments.get("timeout", 20.0))
        except FerruleError as error:
            report(error=type(error).__name__, text=str(error), cause=cause)
            return
        first = [first[rank] for rank in group.origin]
        assert first[group.rank] == int(os.environ["FERRULE_RANK"])
        try:
            total = group.all_reduce(np.array([1 << one for one in first])[group.rank :][:1])
        except FerruleError:
            continue  # another rank was lost just then
        report(error=None, first=first, total=int(total[0]), cause=cause, transports=group.describe().transports)
    half = group.split(group.rank % 2)
    assert half is not None
    group.barrier()


def one_stays_away(group: Group, arguments: dict[str, Any]) -> None:
    if group.rank == 2:
        while True:
            try:
                group.check()
            except FerruleError:
                break
            time.sleep(0.01)
        time.sleep(1.5)
        report(done=True)
        return
    attempt(lambda: group.reform(timeout=0.5))


def fail_and_reform(group: Group, arguments: dict[str, Any]) -> None:
    with contextlib.suppress(FerruleError):
        group.all_reduce(np.zeros(10 + group.rank))
    again = group.reform()
    assert again.all_reduce(np.array([1]))[0] == group.size
    try:
        group.reform()
    except FerruleError as error:
        report(origin=list(again.origin), text=str(error))
    again.barrier()


def busy(group: Group, arguments: dict[str, Any]) -> None:
    """Rank 1 holds the interpreter's lock in one long call."""
    group.barrier()
    if group.rank == 1:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            sum(range(2_000_000))
    group.barrier()
    report(done=True)


def huge(group: Group, arguments: dict[str, Any]) -> None:
    """One array of more bytes than 32 bits can count, over every path that data take."""
    size, step = arguments["size"], 1 << 26

    def check(wanted: int) -> None:
        for begin in range(0, size, step):
            assert (x[begin : begin + step] == wanted).all(), f"wrong after element {begin}"

    x = np.full(size, group.rank + 1, np.uint8)
    group.all_reduce(x)
    check(3)
    if group.rank == 0:
        x[:] = 7
    group.broadcast(x, 0)
    check(7)
    if group.rank == 1:
        x[:] = 9
        group.send(x, 0)
    else:
        group.recv(x, 1)
        check(9)
    group.barrier()
    report(done=True)


def interrupted(group: Group, arguments: dict[str, Any]) -> None:
    group.barrier()

    def wait() -> None:
        report(ready=True)
        group.recv(np.empty(1, np.uint8), 1 - group.rank)

    attempt(wait)


def departs(group: Group, arguments: dict[str, Any]) -> None:
    """Rank 1 sends, closes and goes; rank 0 still gets what was sent, and then learns that it is gone."""
    if group.rank == 1:
        group.send(np.arange(1000), 0)
        group.close()
        report(done=True)
        return
    x = np.zeros(1000, np.int64)
    group.recv(x, 1)
    assert (x == np.arange(1000)).all()
    attempt(lambda: group.recv(x, 1))


def threads(group: Group, arguments: dict[str, Any]) -> None:
    """A second thread is told off without harm; abort() ends a wait from outside."""
    group.barrier()
    if group.rank == 1:
        group.send(np.zeros(1, np.uint8), 0)

        def receive_all() -> None:
            while True:
                group.recv(np.empty(2, np.uint8), 0)

        attempt(receive_all)
        return
    done = threading.Event()
    outcome: list[str] = []

    def wait() -> None:
        refused = True
        while refused:  # either thread may be the one that finds the other inside
            try:
                group.recv(np.empty(2, np.uint8), 1)
            except FerruleError as error:
                refused = "one thread at a time" in str(error)
                if not refused:
                    outcome.append(str(error))
        done.set()

    group.recv(np.empty(1, np.uint8), 1)
    waiting = threading.Thread(target=wait)
    waiting.start()
    busy = None
    while busy is None and not done.is_set():
        try:
            # Until the other thread is inside, this sends.
            group.send(np.empty(2, np.uint8), 1, timeout=5)
        except FerruleError as error:
            busy = str(error)
    group.abort("enough")
    waiting.join(5)
    report(busy=busy, outcome=outcome)


def arguments_checked(group: Group, arguments: dict[str, Any]) -> None:
    import torch

    frozen = np.zeros(4)
    frozen.flags.writeable = False
    calls: list[Callable[[], Any]] = [
        lambda: group.all_reduce(np.zeros((4, 4))[:, 1]),
        lambda: group.all_reduce(torch.zeros(4, 4).t()[1:]),
        lambda: group.all_reduce(frozen),
        lambda: group.all_reduce([1, 2]),
        lambda: group.all_reduce(np.zeros(3, np.complex64)),
        lambda: group.all_reduce(torch.zeros(3, dtype=torch.complex64)),
        lambda: group.all_reduce(torch.zeros(3, device="meta")),
        lambda: group.all_reduce(np.zeros(3, ">f4")),
        lambda: group.all_reduce(np.zeros(3), "median"),
        lambda: group.all_reduce(np.zeros(3, bool), "avg"),
        lambda: group.broadcast(np.zeros(3), root=group.size),
        lambda: group.send(np.zeros(3), group.rank),
        lambda: group.reduce_scatter(np.zeros(group.size + 1)),
        lambda: group.all_gather(np.zeros(3), out=np.zeros(3 * group.size + 1)),
        lambda: group.all_gather(np.zeros(3), out=np.zeros(3 * group.size, np.float32)),
    ]
    for call in calls:
        attempt(call)
    # None of this hurt the group.
    group.barrier()
    assert group.all_reduce(np.ones(2))[0] == group.size
    out = np.zeros((2 * group.size, 3), np.float16)
    assert group.all_gather(np.full((2, 3), group.rank, np.float16), out=out) is out
    report(done=True)


def sockets(group: Group, arguments: dict[str, Any]) -> None:
    """Waits until a second rail to the peer is there, and has carried something."""
    deadline = time.monotonic() + 20
    whole = False
    while not whole and time.monotonic() < deadline:
        x = np.ones(200_000, np.float32)
        assert (group.all_reduce(x) == group.size).all()
        states = group._core.native.rails(0, 1 - group.rank)
        carried = [sent for _, sent, *_ in states]
        whole = bool(group.all_reduce(np.array(len(carried) == 2 and min(carried) > 0), "min"))
    report(text=str(group.describe()), bytes=[sent for _, sent, *_ in group._core.native.rails(0, 1 - group.rank)])


def rails(group: Group, arguments: dict[str, Any]) -> None:
    """Rank 0 cuts one of its sockets: results stay right, and the rail comes back, also in a group made meanwhile.

    ``reset``: as a kernel does that knows nothing of the connection; else it ends in order.
    """

    def alive(one: Group) -> list[bool]:
        return [state[0] for stream in (0,) for state in one._core.native.rails(stream, 1 - one.rank)]

    def total() -> None:
        x = np.ones(500_000, np.float32)
        assert (group.all_reduce(x) == group.size).all()

    total()
    if group.rank == 0 and alive(group):
        # The last of the sockets that lead to rank 1: on the stream of collectives, the last rail.
        remote = group.describe().peers[1].rails[-1].remote
        for fd in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd.name))) as sock:
                if sock.family == socket.AF_INET and "{}:{}".format(*sock.getpeername()) == remote:
                    if arguments.get("reset"):
                        nowhere = bytes(16)  # an address of AF_UNSPEC
                        assert ctypes.CDLL(None).connect(sock.fileno(), nowhere, len(nowhere)) == 0
                    else:
                        sock.shutdown(socket.SHUT_RDWR)
                    break
    total()
    split = group.split(0)
    assert split is not None
    deadline = time.monotonic() + 20
    whole = False
    while not whole and time.monotonic() < deadline:
        total()
        whole = bool(group.all_reduce(np.array(all(alive(group)) and all(alive(split))), "min"))
    assert whole, "the rail is not back"
    total()
    deaths = sum(state[3] for stream in (0, 1) for state in group._core.native.rails(stream, 1 - group.rank))
    info = group.describe().peers[1 - group.rank]
    report(numbers=[rail.number for rail in info.rails], text=str(group.describe()), deaths=deaths, split=alive(split))
    group.barrier()


def joins(arguments: dict[str, Any]) -> None:
    """Only the rendezvous; how it went is what matters."""
    attempt(lambda: fabric.init().close())


def _pretend(arguments: dict[str, Any]) -> None:
    """Make one machine look like several, or like one without room for shared memory."""
    if "memory_ids" in arguments:
        own = arguments["memory_ids"][int(os.environ["FERRULE_RANK"])]
        hosts._memory_id = lambda: own  # type: ignore[assignment]
    if "cpus" in arguments:
        os.sched_getaffinity = lambda pid: set(arguments["cpus"])
    if "no_room" in arguments:

        class NoSegment:
            @staticmethod
            def create(token: bytes, ranks: int) -> None:
                raise OSError("there is no room")

        _native.Segment = NoSegment  # type: ignore[assignment,misc]


def from_any(group: Group, arguments: dict[str, Any]) -> None:
    """Rank 0 takes messages of the others as they come: many short ones, and some that no buffer holds."""
    seen: dict[int, int] = {}
    for elements, messages in ((1, 200), (300_000, 5)):
        for _ in range(messages if group.rank else messages * (group.size - 1)):
            if group.rank:
                group.send(np.full(elements, float(group.rank)), 0)
            else:
                x = np.empty(elements)
                work = group.recv(x, None, blocking=False)
                work.wait(60)
                assert (x == work.source).all()
                seen[work.source] = seen.get(work.source, 0) + 1
        group.barrier()
    report(seen=seen)


def main() -> None:
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    _pretend(arguments)
    if name == "joins":
        joins(arguments)
    else:
        group = fabric.init(strict=True)
        for case in name.split("+"):
            globals()[case](group, arguments)


if __name__ == "__main__":
    main()
