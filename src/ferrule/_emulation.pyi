"""Types of the module with the lab's emulated cables and USB4 controllers; see native/emulation. Linux only."""

class Usb4Engine:
    """Emulated USB4 controllers and the wires between them, moved by a thread of its own. Linux only.

    Raises `IndexError` for a controller, wire, ring or vector that is not there, `ValueError` or `RuntimeError` for
    memory that cannot be mapped.
    """

    def __init__(self) -> None: ...
    def add_controller(self, hops: int) -> int: ...
    def add_wire(self, seed: int, interface: int) -> int:
        """One direction of a cable. ``interface``: of the trace."""
    def registers(self, controller: int) -> int:
        """A file with the controller's registers, which a guest may map; the engine's own."""
    def read(self, controller: int, offset: int, size: int) -> bytes: ...
    def write(self, controller: int, offset: int, data: bytes) -> None: ...
    def map_memory(self, controller: int, address: int, size: int, fd: int, offset: int, writable: bool) -> None: ...
    def unmap_memory(self, controller: int, address: int, size: int) -> bool:
        """Whether there was any that lies wholly in this range."""
    def forget_memory(self, controller: int) -> None:
        """And its interrupts."""
    def set_interrupt(self, controller: int, vector: int, fd: int) -> None:
        """Takes a duplicate; -1: none."""
    def reset(self, controller: int) -> None: ...
    def stall(self, controller: int, transmit: bool, ring: int, on: bool) -> None: ...
    def lose_interrupts(self, controller: int, chance: float) -> None: ...
    def connect(self, controller: int, ring: int, wire: int, peer: int, peer_ring: int, hop: int) -> None:
        """Frames of this Tx ring go over the wire to the peer's Rx ring, with this HopID on the cable."""
    def disconnect(self, controller: int, ring: int) -> None: ...
    def shape(
        self,
        wire: int,
        *,
        rate: float,
        delay: float,
        drop: float,
        corrupt: float,
        duplicate: float,
        reorder: float,
        mute: bool,
    ) -> None:
        """``rate``: bits per second, 0: no limit; ``delay``: seconds; the others are chances."""
    def clear(self, wire: int) -> None:
        """Drop what is under way."""
    def wire_counters(self, wire: int) -> dict[str, int]: ...
    def controller_counters(self, controller: int) -> dict[str, int]: ...
    def control_event(self) -> int:
        """Readable when there are control packets; the engine's own."""
    def take_control(self) -> tuple[int, int, bytes] | None:
        """Controller, kind and bytes of the next control packet from a guest."""
    def send_control(self, controller: int, kind: int, data: bytes) -> None: ...
    def open_trace(self, fd: int, most: int) -> None:
        """Packets go to the end of this file from now on, at most so many bytes of each."""
    def close_trace(self) -> None: ...
    def trace_control(self, interface: int, kind: int, data: bytes, dropped: bool) -> None: ...
    def trace_lost(self) -> int:
        """Packets for which there was no room."""

class Shaper:
    """Carries packets between the ends of emulated cables, on threads of its own. Linux only."""

    def __init__(self, threads: int = 0) -> None: ...
    def join(self, fds: list[int], seed: int) -> int:
        """The descriptors are the shaper's from here on, also on failure."""
    def part(self, cable: int) -> None: ...
    def set(
        self,
        cable: int,
        end: int,
        *,
        rate: float,
        delay: float,
        jitter: float,
        loss: float,
        corrupt: float,
        duplicate: float,
        reorder: float,
        collapse: float,
        queue: int,
        overhead: int,
        flow: int,
    ) -> None: ...
    def clear(self, cable: int) -> None: ...
    def read(self, cable: int, end: int) -> dict[str, float]: ...
    def close(self) -> None: ...
