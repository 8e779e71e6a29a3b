"""Named tensors from one rank to another, whose shapes the other does not know: what pipeline stages hand on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from ferrule.errors import FabricError
from ferrule.fabric import Group
from ferrule.torch_backend.tensors import check, line_of, source

FRAME = 512
"""Bytes of the first message. It holds the description of a few tensors; a longer one comes in a message of its own."""
_LENGTH = 4
_MOST_BYTES = 1 << 20

_Size = Annotated[int, msgspec.Meta(ge=0)]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """``dtype``: its name in torch."""

    name: str
    dtype: str
    shape: list[_Size]


_parts: msgspec.msgpack.Decoder[list[Part]] = msgspec.msgpack.Decoder(list[Part])


class Sending:
    """Messages to one or several ranks that are under way. Their tensors must not be written to until `wait`."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._works: list[Any] = []

    def send(self, tensors: Mapping[str, Tensor], dst: int) -> None:
        """Start to send ``tensors`` to rank ``dst``, which must `receive` them; waits for those before. Raises
        `TypeError` for what is no tensor in host memory."""
        self.wait()
        for name, t in tensors.items():
            if not isinstance(t, Tensor):
                raise TypeError(f"{name!r} is a {type(t).__name__}; stages hand on tensors only")
            check(t)
        self._works = [
            self._group.send(message, dst, blocking=False)
            for message in (*_describe(tensors), *(source(t.detach()) for t in tensors.values() if t.numel()))
        ]

    def wait(self) -> None:
        """Until nothing is under way. Raises what the fabric raises."""
        works, self._works = self._works, []
        for work in works:
            work.wait()


def receive(group: Group, src: int) -> dict[str, Tensor]:
    """What rank ``src`` sends next: new tensors in host memory. Raises what the fabric raises."""
    frame = torch.empty(FRAME, dtype=torch.uint8)
    group.recv(frame, src)
    received = {}
    for part in _read(group, frame, src):
        dtype = getattr(torch, part.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise _malformed(src, f"{part.dtype!r} is no type of torch {torch.__version__}")
        received[part.name] = torch.empty(part.shape, dtype=dtype)
    for t in received.values():
        if t.numel():
            group.recv(line_of(t), src)
    return received


def _describe(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The frame, and what does not fit into it."""
    text = msgspec.msgpack.encode(
        [Part(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()]
    )
    inside = text if len(text) <= FRAME - _LENGTH else b""
    frame = (len(text).to_bytes(_LENGTH, "little") + inside).ljust(FRAME, b"\0")
    return [_bytes(frame)] if inside else [_bytes(frame), _bytes(text)]


def _read(group: Group, frame: Tensor, src: int) -> list[Part]:
    said = frame.numpy().tobytes()
    length = int.from_bytes(said[:_LENGTH], "little")
    if length > _MOST_BYTES:
        raise _malformed(src, f"{length} bytes of description")
    text = said[_LENGTH : _LENGTH + length]
    if length > FRAME - _LENGTH:
        rest = torch.empty(length, dtype=torch.uint8)
        group.recv(rest, src)
        text = rest.numpy().tobytes()
    try:
        return _parts.decode(text)
    except msgspec.DecodeError as error:
        raise _malformed(src, str(error)) from error


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _malformed(src: int, why: str) -> FabricError:
    return FabricError(f"rank {src} sent tensors as this version of ferrule does not ({why}); install the same one")
