"""Types of the native module; see native/python/binding.cpp. Every operation returns a status, 0 for success.

Objects that were closed or taken over by a group raise `ValueError`, exhausted memory `MemoryError`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

STATUS: dict[str, int]
OPS: dict[str, int]
ALGORITHMS: dict[str, int]
STREAMS: dict[str, int]
DTYPES: dict[str, int]
REDUCTIONS: dict[str, int]

def raw_tcp_ping_pong(fd: int, data: int, size: int, rounds: int, starts: bool, timeout: float, /) -> list[float]: ...
def raw_tcp_exchange(fd: int, data: int, other: int, size: int, rounds: int, timeout: float, /) -> list[float]: ...
def raw_tcp_alone(fd: int, other_fd: int, data: int, size: int, rounds: int, timeout: float, /) -> list[float]: ...
def raw_shm_ping_pong(
    memory: int, data: int, size: int, rounds: int, starts: bool, timeout: float, /
) -> list[float]: ...
def raw_shm_bytes() -> int: ...
def raw_memcpy(target: int, source: int, size: int, rounds: int, /) -> list[float]: ...

class VerbsPort(TypedDict):
    """A port of an RDMA device; ``problem``: why it cannot be used. ``gids``: by index."""

    device: str
    problem: str
    port: int
    active: bool
    infiniband: bool
    iwarp: bool
    vendor: int
    mtu: int
    lid: int
    max_qp: int
    max_mr: int
    max_qp_wr: int
    gids: dict[int, bytes]

def verbs_ports() -> list[VerbsPort]: ...
def verbs_problem() -> str:
    """Reason why this machine's RDMA library cannot be used; empty where it can."""

def know_tensors(type: type, api: object) -> bool: ...  # noqa: A002
def locate_tensor(x: object, /) -> tuple[int, int, int] | None: ...

class Segment:
    @staticmethod
    def create(token: bytes, ranks: int) -> Segment: ...
    @staticmethod
    def open(place: str, token: bytes, ranks: int) -> Segment: ...
    @property
    def place(self) -> str: ...
    def hide(self) -> None: ...
    def close(self) -> None: ...

class Channel:
    """One peer's pipe. A group takes it over."""

    @staticmethod
    def tcp(rank: int, peer: int, fds: list[int], epoch: int, best: int = 0) -> Channel:
        """``fds``: a connected socket per rail, -1 for one that is missing yet; both ends number them alike. ``best``:
        the rail for small messages."""
    @staticmethod
    def shm(
        rank: int, peer: int, fd: int, epoch: int, segment: Segment, stream: int, mine: int, theirs: int
    ) -> Channel: ...
    @staticmethod
    def verbs(rank: int, peer: int, fd: int, epoch: int, endpoint: VerbsEndpoint) -> Channel: ...
    @property
    def transport(self) -> str: ...

class VerbsEndpoint:
    """One end of a queue pair; see native/src/transports/verbs/verbs_endpoint.h. Failures are OSError."""

    def __init__(
        self,
        device: str,
        port: int,
        gid_index: int,
        type: str,  # noqa: A002
        stream: int,
        address: str = "",
        listens: bool = False,
    ) -> None: ...
    @property
    def local(self) -> bytes: ...
    def join(self, other: bytes, timeout: float) -> None: ...
    def prove(self, timeout: float) -> None: ...
    def close(self) -> None: ...

class DeviceRegion:
    """Memory of a device that an RDMA adapter reads and writes, until this object is gone."""

class Operation:
    """See native/src/operation.h."""

    def __init__(
        self,
        op: int,
        dtype: int,
        reduction: int = 0,
        root: int = -1,
        source: int = 0,
        target: int = 0,
        count: int = 0,
        send_counts: list[int] = ...,
        recv_counts: list[int] = ...,
        quantized: bool = False,
        region: DeviceRegion | None = None,
        device: int = 0,
    ) -> None: ...
    @property
    def op(self) -> int: ...
    @property
    def placed(self) -> bool:
        """Of a recv with a region that is done: its bytes are at the address ``device``, not at ``target``."""

class Work:
    def wait(self, timeout: float) -> int: ...
    def then(self, done: Callable[[], object]) -> None: ...
    @property
    def source(self) -> int:
        """The rank from which a recv with root -1 got its message; -1 until then."""

class Heartbeat:
    """Watches the ranks of a job over connections of its own; see native/src/liveness/heartbeat.h.

    ``interval`` and ``limit`` in seconds; limit 0: only the end of all connections to a rank makes it lost.
    """

    def __init__(self, rank: int, size: int, epoch: int, interval: float, limit: float) -> None: ...
    def add(self, peer: int, rail: int, fd: int, name: str, via: int = -1) -> None:
        """Take over a connected socket to ``peer``. ``name``: for what `lost` says; ``via``: a rank that relays it."""

    def peers(self) -> list[tuple[str, float]]:
        """Per rank: self, absent, alive, left or lost; and the seconds since it was last heard."""

    def rails(self, peer: int) -> list[bool]:
        """Whether each rail is connected and brings beats."""

    def lost(self) -> dict[int, str]:
        """The ranks that are lost, and why."""

    def close(self) -> None: ...

class Relay:
    """Carries bytes for ranks that share no link, on a thread of its own."""

    def add(self, fd_a: int, fd_b: int) -> None:
        """Forward between two connected sockets, both ways; they are the relay's from here on, also on failure."""

    def close(self) -> None:
        """Give those who still talk up to two seconds to end, and cut them off."""

class Group:
    @property
    def address(self) -> int: ...
    def __init__(
        self,
        rank: int,
        epoch: int,
        collectives: list[Channel | None],
        messages: list[Channel | None],
        segment: Segment | None,
        local_index: list[int],
        spin_us: float,
        yield_us: float,
        decisions: list[tuple[int, int, int]] = ...,
        tree: list[int] = ...,
        ring: list[int] = ...,
        heartbeat: Heartbeat | None = None,
        heartbeat_ranks: list[int] = ...,
    ) -> None: ...
    def all_reduce(self, data: int, count: int, dtype: int, reduction: int, timeout: float, /) -> int: ...
    def all_reduce_tensor(self, x: object, reduction: int, timeout: float, /) -> int:
        """NOT_HERE: `locate_tensor` does not find it."""
    def all_reduce_torch(
        self, tensors: list[Any], options: object, reductions: dict[int, int], timeout: float, /
    ) -> int:
        """For torch's ``AllreduceOptions``. NOT_HERE: several tensors, one that is not found, or not waited for."""
    def send(self, data: int, count: int, dtype: int, peer: int, timeout: float, /) -> int: ...
    def recv(self, data: int, count: int, dtype: int, peer: int, timeout: float, /) -> int: ...
    def barrier(self, timeout: float, /) -> int: ...
    def add_rail(self, stream: int, peer: int, rail: int, fd: int) -> int:
        """Put a fresh socket in the place of a rail. INVALID: the group is closed, and ``fd`` stays the caller's."""
    def rails(self, stream: int, peer: int) -> list[tuple[bool, int, int, int, bool]]:
        """Per rail: whether it lives, bytes sent, bytes received, how often it died, and whether it lives but nothing
        gets through. Empty: no channel of rails."""
    def register_memory(self, peer: int, fd: int, offset: int, length: int, address: int) -> DeviceRegion:
        """Bytes of a dma-buf, which the device has at ``address``, for messages from and to ``peer``. OSError: no."""
    def time(
        self, name: str, source: int, out: int, count: int, dtype: int, samples: int, timeout: float, /
    ) -> list[float]: ...
    def run(self, operations: list[Operation], timeout: float, /) -> int: ...
    def start(self, operations: list[Operation], timeout: float, /) -> Work | int: ...
    def close(self) -> int: ...
    def abort(self, reason: str, /) -> None: ...
    def failure(self) -> tuple[int, int, float, str]: ...

def kernel_instructions() -> str: ...
def quantise(element: int, numbers: int, groups: int, bits: int, codes: int, scales: int) -> None:
    """``groups`` times 32 numbers (0: bfloat16, 1: float16, 2: float32) as codes of 4 or 8 bits and float32 scales."""

def unpack(address: int, rows: int, stride: int, size: int, width: int, bits: int, step: int, codes: int) -> None:
    """A byte for each code of ``bits`` in ``rows`` times ``size`` bytes, ``stride`` apart: of each ``width`` bytes
    first the lowest bits of all, then the next. Codes of 3, 5, 6 or 7 bits lie end to end, with a width of 1.
    ``step``: 0, or from one word of 4 bytes of a row to its next."""

def sample(logits: int, count: int, temperature: float, top_k: int, top_p: float, min_p: float, random: float) -> int:
    """A token, by the address of ``count`` float32 logits; ``random``: of [0, 1). -1 where no logit is a number."""

class Matrix:
    """A packed matrix. Codes and scales are the numbers of `ferrule.engine.weights.matrix`; arrays are addresses."""

    def __init__(
        self, rows: int, columns: int, codes: int, bits: int, scale: int, offsets: int, zero: int, group: int
    ) -> None: ...
    def set_order(self, order: list[int], /) -> None: ...
    def pack_groups(
        self,
        first: int,
        rows: int,
        codes: int,
        row_stride: int,
        column_stride: int,
        scales: int,
        offsets: int = 0,
        supers: int = 0,
        super_offsets: int = 0,
    ) -> None: ...
    def pack_plain(self, first: int, rows: int, numbers: int, stride: int, /) -> None: ...
    def stream(self, pool: WeightPool, part: int, index: int, /) -> None:
        """Give its memory back: its data are those of matrix ``index`` of a part of ``pool``."""

    @property
    def layout(self) -> tuple[int, int, int, int, int, int, int, int]:
        """As ``__init__`` takes it."""

    @property
    def order(self) -> list[int]: ...
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...

def read_rate(descriptor: int, threads: int, offset: int, size: int) -> float:
    """Bytes per second by which a file is read from ``offset`` on, as weights are."""

class WeightFile:
    """Threads that read a file for its pools. The descriptor is duplicated."""

    def __init__(self, descriptor: int, threads: int) -> None: ...

class WeightPool:
    """Parts of a file, each the offsets and sizes of some matrices, of which as many are in memory as there are
    ``slots``. ``cyclic``: they are entered one after the other, and again."""

    def __init__(self, file: WeightFile, parts: list[list[tuple[int, int]]], slots: int, cyclic: bool) -> None: ...
    def use(self) -> tuple[int, int, int, float]:
        """Parts that were in memory when they were announced, and those that were not; bytes read, seconds waited."""

    @property
    def bytes(self) -> int: ...

class Compute:
    def __init__(self, threads: int) -> None: ...
    def multiply(
        self, matrices: list[Matrix], x: int, count: int, x_stride: int, y: int, y_stride: int, exact: bool, /
    ) -> None: ...

_View = tuple[int, int]

class Program:
    """A step program; `ferrule.engine.rank.step.operations` says what its operations do."""

    def __init__(
        self,
        threads: int,
        layers: list[tuple[int, int, int]],
        cached: int,
        wire: int,
        exact: bool,
        group: int,
        group_size: int,
        group_rank: int,
        context: int = 0,
        context_size: int = 1,
        context_rank: int = 0,
    ) -> None: ...
    def add_register(self, width: int) -> int: ...
    def add_rotary(self, frequencies: list[float], factor: float) -> int: ...
    def embed(self, table: Matrix, first: int, factor: float, shared: bool, to: int) -> None: ...
    def norm(
        self,
        source: _View,
        to: _View,
        width: int,
        count: int,
        weight: list[float],
        bias: list[float],
        eps: float,
        mean: bool,
    ) -> None: ...
    def product(self, source: _View, to: int, matrices: list[Matrix], bias: list[float]) -> None: ...
    def adapt(self, source: _View, to: _View, adapters: list[tuple[int, float, Matrix, Matrix]]) -> None: ...
    def head_product(
        self, source: _View, to: int, source_stride: int, to_stride: int, kept: int, matrices: list[Matrix]
    ) -> None: ...
    def rotate(self, heads: _View, count: int, width: int, table: int, interleaved: bool) -> None: ...
    def attend(
        self,
        query: _View,
        key: _View,
        value: _View,
        to: int,
        layer: int,
        heads: int,
        scale: float,
        softcap: float,
        window: int,
        sinks: list[float],
    ) -> None: ...
    def gate(self, gate: _View, up: _View, gated: bool, to: int, width: int, kind: int) -> None: ...
    def reduce(self, source: int, to: int, add: bool, shared: bool, factor: float, bias: list[float]) -> None: ...
    def reduce_scatter(self, register: int) -> None: ...
    def all_gather(self, register: int, exact: bool) -> None: ...
    def scale(self, register: int, factor: float, softcap: float) -> None: ...
    def select(self, source: int, to: int) -> None: ...
    def gather(self, source: int, to: int, widths: Sequence[int]) -> None: ...
    def experts(
        self,
        x: _View,
        logits: int,
        to: int,
        total: int,
        chosen: int,
        scoring: int,
        normalize: bool,
        factor: float,
        choice_bias: list[float],
        groups: int,
        chosen_groups: int,
        group_best: int,
        first: int,
        sharing: int,
        bounds: Sequence[int],
        inner: int,
        kind: int,
        interleaved: bool,
        matrices: list[Matrix],
        biases: list[list[float]],
    ) -> None: ...
    def enter(self, matrix: Matrix) -> None: ...
    def leave(self, matrix: Matrix) -> None: ...
    def run(
        self,
        spans: list[tuple[int, int, int]],
        tokens: Sequence[int],
        wanted: Sequence[int],
        hidden: int,
        timeout_seconds: float,
        length: int,
        adapters: Sequence[int],
        first: int = 0,
        shared_out: bool = False,
    ) -> int: ...
    def address(self, register: int) -> int: ...
    def release(self, sequence: int) -> None: ...
    def keep(self, sequence: int, place: int, block: int) -> None: ...
    def adopt(self, sequence: int, blocks: list[int]) -> None: ...
    def drop(self, block: int) -> None: ...
    def read_block(self, block: int) -> bytes: ...
    def write_block(self, block: int, data: bytes) -> None: ...
    def open_block(self, block: int) -> None: ...
    def part_bytes(self, part: tuple[int, int, int]) -> int: ...
    def copy_part(self, sequence: int, place: int, count: int, part: tuple[int, int, int], to: Any) -> None: ...
    def put_part(self, blocks: list[int], part: tuple[int, int, int], data: Any) -> None: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def bytes_per_token(self) -> int: ...
