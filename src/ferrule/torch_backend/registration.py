"""Tell torch.distributed about the backend, without importing more than that takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Store

BACKEND = "ferrule"
_DEVICES = ("cpu", "cuda", "xpu", "mps")
"""`ferrule.staging` has them too, but imports torch, which is half imported when this is called."""


def register() -> None:
    """Make ``init_process_group("ferrule")`` and ``init_method="ferrule://"`` known. Harmless to call twice.

    A torch that was built without torch.distributed is left alone.
    """
    import torch.distributed as dist

    if not dist.is_available() or BACKEND in dist.Backend.backend_list:
        return
    from torch.distributed.rendezvous import register_rendezvous_handler

    # Only those that torch has a backend for already: of others this would become the one that torch takes by itself.
    # A string instead of a list would be taken letter by letter.
    devices = [kind for kind in _DEVICES if kind in dist.Backend.default_device_backend_map]
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=devices)
    register_rendezvous_handler(BACKEND, _rendezvous)  # type: ignore[no-untyped-call]


def autoload() -> None:
    """torch's entry point ``torch.backends``: ``import torch`` calls it wherever Ferrule is installed.

    So it does what `register` does, but imports nothing but torch, and never fails: the fabric is imported when a group
    is made.
    """
    try:
        register()
    except Exception as error:  # noqa: BLE001 (every program that imports torch would end here)
        logging.getLogger(__name__).warning("torch.distributed cannot use the backend ferrule: %r", error)


def _create(options: Any, _backend_options: object) -> ProcessGroup:
    from ferrule.torch_backend.meeting import all_accelerated, meet
    from ferrule.torch_backend.process_group import FabricProcessGroup

    timeout = options.timeout.total_seconds()
    group = meet(options.store, options.group_rank, options.group_size, timeout)
    return FabricProcessGroup(options.store, group, options.group_id, in_pieces=all_accelerated(group))


def _rendezvous(_url: str, timeout: timedelta, **_options: object) -> Iterator[tuple[Store, int, int]]:
    from ferrule.torch_backend.meeting import store_from_environment

    yield store_from_environment(timeout)
