"""Choice of the ranks that exchange device tensors without the fabric. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Offer(msgspec.Struct, frozen=True):
    """A rank to the others: ``host``, the same for all ranks of a machine; ``backend``, by which its device exchanges
    with others of that host, empty for none; ``device``: its name; ``wish``: see `config.device_peers`."""

    host: str
    backend: str
    device: str
    wish: str


def units(offers: Sequence[Offer]) -> list[tuple[int, ...]]:
    """The ranks, in units of those that can exchange by themselves, each unit in order, by its first rank, the leader.

    All ranks of a host are in one, if their devices are different ones of the same backend and none is against it.
    """
    by_host: dict[str, list[int]] = {}
    for rank, offer in enumerate(offers):
        by_host.setdefault(offer.host, []).append(rank)
    found: list[tuple[int, ...]] = []
    for ranks in by_host.values():
        together = not _objection([offers[rank] for rank in ranks])
        found += [tuple(ranks)] if together else [(rank,) for rank in ranks]
    return sorted(found)


def objections(offers: Sequence[Offer]) -> list[str]:
    """Why ranks of the same host do not exchange by themselves, one sentence for each host."""
    hosts = dict.fromkeys(offer.host for offer in offers)
    here = [[offer for offer in offers if offer.host == host] for host in hosts]
    return [reason for each in here if len(each) > 1 and (reason := _objection(each))]


def _objection(offers: Sequence[Offer]) -> str:
    names = ", ".join(offer.device for offer in offers)
    if any(offer.wish == "never" for offer in offers):
        return f"{names}: FERRULE_DEVICE_PEERS=never"
    if any(not offer.backend for offer in offers):
        return f"{names}: torch has no backend for all of them (NCCL, RCCL)"
    if len({offer.backend for offer in offers}) > 1:
        return f"{names}: they have different backends"
    if len({offer.device for offer in offers}) < len(offers):
        return f"{names}: ranks share a device"
    return ""
