"""Ranks that are threads of this process and share no link, as far as they know: how they meet, talk, and give up."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import ferrule.fabric as fabric
from ferrule.config import FabricSettings
from ferrule.errors import AuthError, FerruleError, RendezvousError
from ferrule.fabric import Group
from ferrule.fabric.join import new_group
from ferrule.fabric.join.control_channel import ControlChannel, Deadline
from ferrule.fabric.join.dial import Call, dial
from ferrule.fabric.join.handshake import Identity, Role
from ferrule.fabric.join.hosts import RankHost
from ferrule.fabric.join.pending import NO_EPOCH
from ferrule.fabric.routing.paths import Rail, candidates

KEY = secrets.token_bytes(32)
Address = tuple[str, int]


def free_addresses(count: int) -> list[Address]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [("127.0.0.1", int(sock.getsockname()[1])) for sock in sockets]
    for sock in sockets:
        sock.close()
    return addresses


def meet(
    toward: Sequence[Sequence[Address]],
    listen: Sequence[Address | None],
    *,
    timeout: float = 90.0,
    only: Sequence[int] | None = None,
    key: Callable[[int], bytes] = lambda rank: KEY,
) -> list[Group | BaseException]:
    """Start the ranks (``only`` some of them), the highest first; what each came to. ``toward``: FERRULE_ADDRESS."""
    size = len(toward)
    results: list[Group | BaseException] = [RendezvousError("not started")] * size

    def run(rank: int) -> None:
        settings = FabricSettings(
            rank,
            size,
            tuple(toward[rank]),
            key(rank),
            "tcp",
            timeout,
            listen=listen[rank],
            heartbeat=0,
            calibrate="never",
            spin_us=0,
        )
        try:
            results[rank] = fabric.init(settings=settings)
        except FerruleError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (range(size) if only is None else only)]
    for thread in reversed(threads):
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    return results


def groups_of(results: Sequence[Group | BaseException]) -> list[Group]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Group)]


def everywhere(groups: Sequence[Group], body: Callable[[Group], None]) -> None:
    errors: list[BaseException] = []

    def run(group: Group) -> None:
        try:
            body(group)
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            errors.append(error)
            group.abort(str(error))

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def cut(monkeypatch: pytest.MonkeyPatch, linked: Callable[[int, int], bool]) -> None:
    """From now on ranks connect directly only where they are ``linked``."""

    def some(rank: int, own: RankHost, peer: int, other: RankHost, sockets: int = 1) -> tuple[Rail, ...]:
        return candidates(rank, own, peer, other, sockets) if linked(rank, peer) else ()

    monkeypatch.setattr(new_group, "candidates", some)


def chain(size: int) -> tuple[list[list[Address]], list[Address]]:
    """All know but the rank below."""
    listen = free_addresses(size)
    return [[listen[max(rank - 1, 0)]] for rank in range(size)], listen


def use(group: Group) -> None:
    x = np.full(1000, group.rank + 1.0)
    assert (group.all_reduce(x) == sum(range(1, group.size + 1))).all()
    got = group.all_to_all(np.arange(group.size) + 100 * group.rank)
    assert got.tolist() == [100 * rank + group.rank for rank in range(group.size)]
    across = group.size - 1 - group.rank
    if across != group.rank:
        group.send(np.full(300_000, group.rank, np.uint8), across)
        assert (group.recv(np.empty(300_000, np.uint8), across) == across).all()
    part = group.split(group.rank % 2, key=-group.rank)
    assert part is not None
    assert part.all_gather(np.array(group.rank)).tolist() == sorted(
        (rank for rank in range(group.size) if rank % 2 == group.rank % 2), reverse=True
    )
    part.close()
    group.barrier()


def test_a_chain_of_ranks_meets_and_works(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, lambda one, other: abs(one - other) == 1)
    groups = groups_of(meet(*chain(5)))
    assert [peer.via for peer in groups[4].describe().peers] == [(3, 2, 1), (3, 2), (3,), (), ()]
    assert "tcp via rank 1, rank 2, rank 3" in str(groups[0].describe())
    everywhere(groups, use)
    everywhere(groups, lambda group: group.close())


def test_a_star_of_many_ranks_passes_through_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, lambda one, other: 0 in (one, other))
    listen = free_addresses(1)
    groups = groups_of(meet([listen] * 6, [*listen, *[None] * 5]))
    assert all(peer.via == (0,) for peer in groups[5].describe().peers if peer.rank not in (0, 5))
    everywhere(groups, use)
    everywhere(groups, lambda group: group.close())


def test_all_may_have_the_same_list_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, lambda one, other: abs(one - other) == 1)
    listen = free_addresses(3)
    toward = [listen, [listen[0], listen[1]], [listen[1], listen[2]]]
    groups = groups_of(meet(toward, listen))
    assert groups[2].describe().peers[0].via == (1,)
    everywhere(groups, lambda group: group.close())


def test_ranks_without_any_way_between_them_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, lambda one, other: {one, other} != {0, 2} and {one, other} != {1, 2})
    for result in meet(*chain(3)):
        assert isinstance(result, RendezvousError)
        assert "rank 2 cannot reach rank 0, not through other ranks either" in str(result)
        assert "FERRULE_INTERFACES" in str(result)


@pytest.mark.slow
def test_a_rank_behind_one_that_waits_for_rank_0_says_so() -> None:
    results = meet(*chain(3), timeout=1.0, only=[1, 2])
    assert isinstance(results[1], RendezvousError)
    assert "cannot reach rank 0 at" in str(results[1])
    assert isinstance(results[2], RendezvousError)
    # Whichever of the two gives up first.
    assert "rank 1 answers, but has not found rank 0 either" in str(
        results[2]
    ) or "rank 1 does not relay: it gave up: cannot reach rank 0" in str(results[2])


@pytest.mark.slow
def test_addresses_that_lead_in_a_circle_end_at_the_deadline() -> None:
    listen = free_addresses(3)
    results = meet([listen[:1], [listen[2]], [listen[1]]], listen, timeout=1.0)
    assert "rank 1, 2 are missing" in str(results[0])
    for rank in (1, 2):
        assert isinstance(results[rank], RendezvousError)
        assert f"rank {3 - rank}" in str(results[rank])


def test_an_address_that_is_the_rank_s_own_is_an_error_at_once() -> None:
    listen = free_addresses(2)
    begin = time.monotonic()
    results = meet([listen[:1], listen[1:]], listen, only=[1])
    assert "is rank 1 itself" in str(results[1])
    assert time.monotonic() - begin < 10


def test_strangers_are_not_relayed() -> None:
    toward, listen = chain(3)
    stranger = secrets.token_bytes(32)
    results = meet(toward, listen, timeout=1.0, only=[1, 2], key=lambda rank: KEY if rank == 1 else stranger)
    assert isinstance(results[2], AuthError)


def test_a_relay_opens_only_ways_on_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, lambda one, other: abs(one - other) == 1)
    toward, listen = chain(4)
    groups = groups_of(meet(toward, listen))
    epoch = groups[0]._membership.mesh.epoch
    request = Identity(Role.RELAY, 3, 1, 4, epoch)
    target = Identity(Role.MESSAGES, 3, 1, 4, epoch)
    (refused,) = dial([Call(listen[0], target, request=request)], KEY, Deadline(10))
    assert "rank 0 does not relay: it is not between rank 3 and rank 1" in str(refused)
    (early,) = dial([Call(listen[2], target, request=Identity(Role.RELAY, 3, 1, 4, NO_EPOCH))], KEY, Deadline(10))
    assert "this job is complete" in str(early)
    everywhere(groups, lambda group: group.close())
    assert not isinstance(dial([Call(listen[2], target, request=request)], KEY, Deadline(10))[0], ControlChannel)
