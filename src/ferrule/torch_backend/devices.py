"""Calls with tensors on a device, made with host memory in their place: pinned, or theirs where the host sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

from ferrule.staging import Event, Piece, copier_of, spans, staged
from ferrule.torch_backend.tensors import check_dense, off_host
from ferrule.torch_backend.work import Done, Pending

Call = TypeVar("Call", bound=Callable[..., Work])
Cut = Callable[[int, tuple[Any, ...]], "Pieces | None"]


class Caller(Protocol):
    """A process group whose methods are decorated. ``coalesced``: works that are started and not waited for one by one;
    None outside of that."""

    in_pieces: bool
    coalesced: list[Pending] | None

    def rank(self) -> int: ...
    def size(self) -> int: ...


class Role(Enum):
    """Use of an argument: read, written, both, or by the rank: the root reads what the others write, or writes what all
    read."""

    READ = (True, False, True, False)
    WRITTEN = (False, True, False, True)
    BOTH = (True, True, True, True)
    FROM_ROOT = (True, False, False, True)
    TO_ROOT = (True, True, True, False)

    def ways(self, root: bool) -> tuple[bool, bool]:
        """Whether a rank, the ``root`` or another, reads it and whether it writes it."""
        return self.value[:2] if root else self.value[2:]


class Pieces:
    """Arguments of a call that is made as several. ``after`` puts together what they wrote, if that is not in place."""

    def __init__(self, arguments: list[tuple[Any, ...]], after: Callable[[], object] | None) -> None:
        self.arguments, self.after = arguments, after


def device_tensors(*roles: Role, cut: Cut | None = None) -> Callable[[Call], Call]:
    """Decorator for a method of a process group whose first arguments are tensors or lists of them, in ``roles``.

    Those on a device are copied to pinned host memory, which the device does in the order of its current stream; the
    host waits for that once, and the method runs with the host's tensors. What it writes is copied back on the stream
    that is current where the result is waited for, or at once if the call is synchronous. Where the host sees the
    device's memory (`Copier.host_view`) it only waits. ``cut`` makes a large call several, by which copies and messages
    overlap.
    """

    def decorate(method: Call) -> Call:
        @wraps(method)
        def call(group: Caller, *args: Any) -> Work:
            first = next(_tensors(args[: len(roles)]), None)
            if first is None or first.is_cpu:
                return method(group, *args)
            pieces = cut(group.size(), args) if cut is not None and group.in_pieces else None
            if pieces is None:
                return _made(group, method, _Mirrors(group, roles, args))
            return _in_pieces(group, method, roles, args, pieces)

        return cast(Call, call)

    return decorate


def cut_elements(size: int, args: tuple[Any, ...]) -> Pieces | None:
    """Pieces of one tensor each of whose elements is treated alike."""
    (tensors, *rest) = args
    if len(tensors) != 1 or not (cuts := _cuts(tensors[0], 1)):
        return None
    line, after = _dense(tensors[0])
    return Pieces([([line.view(-1)[span]], *rest) for span in cuts], after)


def cut_gather(size: int, args: tuple[Any, ...]) -> Pieces | None:
    """Pieces of an output that takes an input of each rank."""
    output, given, *rest = args
    if output.numel() != size * given.numel() or not (cuts := _cuts(given, size)):
        return None
    rows, after = _dense(output)
    rows, line = rows.view(size, -1), given.detach().reshape(-1)
    return Pieces([(rows[:, span], line[span], *rest) for span in cuts], after)


def cut_scatter(size: int, args: tuple[Any, ...]) -> Pieces | None:
    """Pieces of an output that takes a part of each rank's input."""
    output, given, *rest = args
    if given.numel() != size * output.numel() or not (cuts := _cuts(output, size)):
        return None
    line, after = _dense(output)
    line, rows = line.view(-1), given.detach().reshape(size, -1)
    return Pieces([(line[span], rows[:, span], *rest) for span in cuts], after)


def _cuts(t: Tensor, parts: int) -> list[slice]:
    """Cuts of ``t``, of which a piece takes ``parts``; none where it is one piece. Every rank finds the same."""
    found = spans(t.numel(), parts * t.element_size())
    return found if len(found) > 1 else []


def _dense(t: Tensor) -> tuple[Tensor, Callable[[], object] | None]:
    """The elements of ``t`` without gaps, and how they get into ``t`` if these are others."""
    t = t.detach()
    if t.is_contiguous():
        return t, None
    dense, copier, copied = t.contiguous(), copier_of(t.device), list[Event]()

    def back() -> None:
        if copier is not None and copied:
            copier.follow(copied[0])
        elif copier is not None:
            t.copy_(dense)
            copied.append(copier.record())

    return dense, back


class _Mirrors:
    """Host tensors in the place of a call's device tensors; copies of those that are read are under way."""

    def __init__(self, group: Caller, roles: Sequence[Role], args: tuple[Any, ...]) -> None:
        rest = args[len(roles) :]
        root = bool(rest) and getattr(rest[0], "rootRank", -1) == group.rank()
        self._last: dict[torch.device, Piece] = {}
        self._written: list[Piece] = []
        pairs = list(zip(args, [role.ways(root) for role in roles], strict=False))
        self._args = (*(self._mirror(arg, *ways) for arg, ways in pairs), *rest)
        self.result = [t for arg, (_, written) in pairs if written for t in _tensors(arg)]

    def _mirror(self, given: Any, read: bool, written: bool) -> Any:
        if not isinstance(given, Tensor):
            return [self._mirror(each, read, written) for each in given]
        if given.is_cpu:
            return given
        check_dense(given)
        if hasattr(given, "to_local"):
            raise TypeError(f"this {type(given).__name__} has no memory of its own; pass x.to_local()")
        copier = copier_of(given.device)
        if copier is None:
            raise off_host(given)
        piece = staged(copier, given) if read else Piece(copier, given)
        if read or piece.in_place:
            self._last[given.device] = piece
        if written:
            self._written.append(piece)
        return piece.host

    def arrived(self) -> tuple[Any, ...]:
        """The arguments, when the devices have copied all that is read, and are done with what is used in place; they
        work in the order of the tensors."""
        for piece in self._last.values():
            piece.arrived()
        return self._args

    def home(self) -> None:
        for piece in self._written:
            piece.home()


def _made(group: Caller, method: Callable[..., Work], mirrors: _Mirrors) -> Work:
    work = method(group, *mirrors.arrived())
    if isinstance(work, Pending):
        work.bring_home(mirrors.home, mirrors.result)
    else:
        mirrors.home()
    return work


def _in_pieces(
    group: Caller, method: Callable[..., Work], roles: Sequence[Role], args: tuple[Any, ...], pieces: Pieces
) -> Work:
    given = [_Mirrors(group, roles, each) for each in pieces.arguments]
    outer, group.coalesced = group.coalesced, []  # so that each is started and not waited for
    try:
        for mirrors in given:
            _made(group, method, mirrors)
        works = group.coalesced
    finally:
        group.coalesced = outer
    work = Pending([part for each in works for part in each.parts], list(_tensors(args[: len(roles)])))
    if pieces.after is not None:
        work.bring_home(pieces.after)
    if outer is not None:
        outer.append(work)
    elif len(args) > len(roles) and not args[len(roles)].asyncOp:
        work.wait()
        return Done()
    return work


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    else:
        for each in given:
            yield from _tensors(each)
