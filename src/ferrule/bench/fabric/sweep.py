"""Sweep definition: its cells, its contestants, and the number of calls of each. All pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ferrule.bench.fabric.operations import OPERATIONS
from ferrule.config import check_transport
from ferrule.errors import ConfigError
from ferrule.fabric import DTYPE_BYTES

DEFAULT_SIZES = (64, 8 << 10, 32 << 10, 2 << 20, 64 << 20)
OURS = ("ferrule-native", "ferrule", "ferrule-torch")
PEERS = ("gloo", "openmpi", "mlx-ring")
IMPLS = (*OURS, *PEERS)

MLX_OPERATIONS = frozenset({"all_reduce", "all_gather", "send_recv"})
HALF_FLOATS = frozenset({"bfloat16", "float16"})


@dataclass(frozen=True)
class Contestant:
    """An implementation on a transport. ``raw`` is the limit: of a transport, of ``memory`` (a copy), of ``tcp-both``
    (an exchange: both ends send at once), and of ``torch`` (a call of torch.distributed that does nothing).

    ``rails``: how many sockets per interface it may use.
    """

    impl: str
    transport: str
    rails: int = 1

    def __str__(self) -> str:
        rails = f" ×{self.rails}" if self.rails > 1 else ""
        return f"{self.impl} {self.transport}{rails}"

    def can(self, op: str, dtype: str) -> bool:
        if self.impl == "mlx-ring":
            return op in MLX_OPERATIONS
        if self.impl == "openmpi":  # its C types have none of these; as bytes they can be moved
            return not (OPERATIONS[op].reduces and dtype in HALF_FLOATS)
        if self.impl == "raw" and self.transport == "torch":
            return op == "all_reduce"
        return self.impl != "raw" or op != "barrier"


@dataclass(frozen=True)
class Cell:
    """One thing to measure. ``bytes``: the whole array on one rank; 0 for a barrier, which has no dtype either."""

    op: str
    bytes: int
    dtype: str
    ranks: int

    @property
    def count(self) -> int:
        """Elements that one rank gives or gets."""
        count = OPERATIONS[self.op].count(self.bytes, self.dtype, self.ranks)
        if count is None:
            raise ValueError(f"{self} has no whole number of elements")
        return count


@dataclass(frozen=True)
class Sweep:
    """Every op × size × dtype × number of ranks, for every implementation on every transport.

    ``impls``: None for all that are installed. ``busy``: with another busy process on every core.
    """

    ops: Sequence[str] = ("all_reduce",)
    sizes: Sequence[int] = DEFAULT_SIZES
    dtypes: Sequence[str] = ("float32",)
    transports: Sequence[str] = ("shm", "tcp")
    ranks: Sequence[int] = (2,)
    rails: Sequence[int] = (1,)
    impls: Sequence[str] | None = None
    quick: bool = False
    busy: bool = False

    def __post_init__(self) -> None:
        """Raises `ConfigError` for what cannot be measured, naming the flag."""
        _check_known("--ops", self.ops, OPERATIONS)
        _check_known("--dtypes", self.dtypes, DTYPE_BYTES)
        _check_known("--impls", self.impls if self.impls is not None else IMPLS, IMPLS)
        for name in self.transports:
            check_transport(name, "--transports")
        for flag in ("sizes", "transports", "ranks", "rails"):
            if not getattr(self, flag):
                raise ConfigError(f"--{flag} is empty; name at least one")
        for ranks in self.ranks:
            if ranks < 2:
                raise ConfigError(f"--ranks: a benchmark between ranks needs at least 2 of them, not {ranks}")
        if min(self.rails) < 1:
            raise ConfigError(f"--rails: at least 1, not {min(self.rails)}")
        for size in self.sizes:
            for dtype in self.dtypes:
                if size < 1 or size % DTYPE_BYTES[dtype]:
                    raise ConfigError(f"--sizes: {size} bytes are no whole number of {dtype}")

    def contestants(self, available: Sequence[str]) -> list[Contestant]:
        """Those of ``available`` that are asked for, on the transports they have."""
        found = []
        for impl in IMPLS:
            if impl not in available or (self.impls is not None and impl not in self.impls):
                continue
            if impl in OURS:
                for transport in self.transports:
                    rails = self.rails if transport == "tcp" else self.rails[:1]
                    found += [Contestant(impl, transport, count) for count in rails]
            elif impl == "openmpi":
                found += [Contestant(impl, transport) for transport in self.transports if transport in ("shm", "tcp")]
            else:
                found.append(Contestant(impl, "tcp"))
        return found

    def cells(self, ranks: int) -> tuple[list[Cell], list[str]]:
        """In the order of measuring, and notes about what is left out."""
        cells, notes = [], []
        for op in self.ops:
            if op == "barrier":
                cells.append(Cell(op, 0, "uint8", ranks))
                continue
            for dtype in self.dtypes:
                for size in self.sizes:
                    if OPERATIONS[op].count(size, dtype, ranks) is None:
                        notes.append(f"{op} of {size} bytes of {dtype} does not divide between {ranks} ranks: left out")
                    else:
                        cells.append(Cell(op, size, dtype, ranks))
        return cells, notes


def _check_known(flag: str, given: Sequence[str], known: Collection[str]) -> None:
    if not given:
        raise ConfigError(f"{flag} is empty; choose from {', '.join(known)}")
    for name in given:
        if name not in known:
            raise ConfigError(f"{flag}: there is no {name!r}; choose from {', '.join(known)}")


def rounds(quick: bool) -> int:
    return 10 if quick else 40


def turn_us(quick: bool) -> float:
    """Time that a turn should take: a fifth of a second altogether with ``quick``, else two."""
    return (0.2e6 if quick else 2e6) / rounds(quick)


@dataclass(frozen=True)
class Turns:
    """Number of a contestant's calls: ``samples`` per turn after ``dropped`` more that warm up, in ``turns`` turns."""

    dropped: int
    samples: int
    turns: int

    def takes(self, turn: int, of: int) -> bool:
        """Whether this contestant plays in round ``turn`` of ``of``; slow ones sit out evenly."""
        return (turn + 1) * self.turns // of > turn * self.turns // of

    def after(self, microseconds: float, *, quick: bool) -> Turns:
        """Shorter ones, if the last took far too long: ranks that lose their core to others cannot be foreseen."""
        if microseconds < 3 * turn_us(quick):
            return self
        return replace(self, samples=max(1, int(self.samples * turn_us(quick) / microseconds)))


def plan_turns(estimate_us: float, *, quick: bool, crowded: bool) -> Turns:
    """As many calls as the time allows; at least three turns of one.

    ``crowded``: ranks share cores, with each other or with strangers. Then turns outlast the scheduler's slices:
    in short ones everyone would run on the slice that it gets for waking up.
    """
    samples = max(1, min(20_000 if crowded else 100, int(turn_us(quick) / estimate_us)))
    turns = max(3, min(rounds(quick), int(turn_us(quick) * rounds(quick) / estimate_us / samples)))
    # The ranks do not begin together, and what the others left in the caches is not theirs.
    dropped = 5 if estimate_us < 1e3 else 1 if estimate_us < 1e4 else 0
    return Turns(dropped, samples, turns)
