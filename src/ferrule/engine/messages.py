"""Control messages between a model's server and its ranks: tagged structs, one JSON object a line.

Down to a rank go *orders*: `Start` to one that was started without options, `Meet` to each when all have done their
imports, or are to meet anew, and `Learn`, `Attach`, `Add`, `Embed` and `Cancel` to the driver. Up come *events*. Both
are decoded here and nowhere else; a message has at most `LINE_LIMIT` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from ferrule.engine.options import RankOptions
from ferrule.engine.types import FinishReason, ImageInput, PrefixUse, Progress, PromptToken, RankInfo, SamplingParams
from ferrule.errors import EngineError
from ferrule.model import PoolingMode

LINE_LIMIT = 1 << 26
"""Bytes of the longest message, either way."""
PIECE = 1 << 20
"""Bytes of images in a message."""


class Start(msgspec.Struct, frozen=True, tag="start", tag_field="op"):
    options: RankOptions


class Meet(msgspec.Struct, frozen=True, omit_defaults=True, tag="meet", tag_field="op"):
    """All ranks have done their imports: their time to meet begins.

    ``number``: how often ranks of this start have met before; each meeting has a key of its own, which a rank that was
    given up does not know. ``options``: of this one, for ranks that have met before."""

    number: int = 0
    options: RankOptions | None = None


class Add(msgspec.Struct, frozen=True, tag="add", tag_field="op"):
    """A request. ``made``: tokens of its answer that there were before the ranks were lost; ``scored``: as many of the
    prompt's tokens had their log-probabilities. ``images``: whether it has some, which came before it (`Attach`)."""

    id: int
    prompt: tuple[int, ...]
    made: tuple[int, ...]
    params: SamplingParams
    scored: int = 0
    images: bool = False


class Attach(msgspec.Struct, frozen=True, tag="attach", tag_field="op"):
    """The next piece of the images of request ``id``, which follows: see `attached`."""

    id: int
    piece: bytes


class Embed(msgspec.Struct, frozen=True, tag="embed", tag_field="op"):
    """A request for a vector."""

    id: int
    prompt: tuple[int, ...]
    pooling: PoolingMode


class Learn(msgspec.Struct, frozen=True, tag="learn", tag_field="op"):
    """The model's tokenizer, as ``tokenizer.json`` has it: comes before the first request that has a constraint."""

    tokenizer: str


class Cancel(msgspec.Struct, frozen=True, tag="cancel", tag_field="op"):
    id: int


Order = Start | Meet | Learn | Attach | Add | Embed | Cancel


class Alive(msgspec.Struct, frozen=True, tag="alive", tag_field="event"):
    """The heartbeat of a rank's process (`ferrule.process.lifeline`)."""


class Here(msgspec.Struct, frozen=True, tag="here", tag_field="event"):
    """The rank has done its imports."""


class Loading(msgspec.Struct, frozen=True, tag="progress", tag_field="event"):
    progress: Progress


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="event"):
    """``cache_tokens``: how many tokens the caches of every rank hold."""

    info: RankInfo
    cache_tokens: int


class NewToken(msgspec.Struct, frozen=True, array_like=True):
    """The next token of request ``id``. ``cached``: as of `Token`."""

    id: int
    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    finish: FinishReason | None
    cached: int | None = None


class Tokens(msgspec.Struct, frozen=True, tag="tokens", tag_field="event"):
    tokens: tuple[NewToken, ...]


class Scores(msgspec.Struct, frozen=True, tag="scores", tag_field="event"):
    """Log-probabilities of the prompt of request ``id``: of its tokens from ``first`` + 1 on. They come before its
    first token."""

    id: int
    first: int
    tokens: tuple[PromptToken, ...]


class Embedded(msgspec.Struct, frozen=True, tag="embedded", tag_field="event"):
    """Vector of request ``id``, in float32 of the machine; not normalised."""

    id: int
    vector: bytes


class Refused(msgspec.Struct, frozen=True, tag="refused", tag_field="event"):
    """Request ``id`` cannot be answered, or not further, by its own fault. ``code``: as in `RequestError`."""

    id: int
    message: str
    code: str


class Load(msgspec.Struct, frozen=True, tag="load", tag_field="event"):
    """Number of sequences that run and that wait. ``prefix``: as of `Health`."""

    running: int
    waiting: int
    prefix: PrefixUse | None = None


class DeviceLost(msgspec.Struct, frozen=True):
    """A device that a rank cannot use any more. ``starting``: it was so before the rank was ready. ``others``: further
    devices of that host, those first that are most like it."""

    name: str
    starting: bool
    others: tuple[str, ...]


class Failed(msgspec.Struct, frozen=True, tag="error", tag_field="event"):
    """``type``: the class of `ferrule.errors`. ``lost``: the rank whose loss this one noticed.
    ``device``: its own, where that is the cause. ``keeps``: it goes on with what it has loaded, once it is told to meet
    the others anew; it says nothing before."""

    type: str
    message: str
    lost: int | None = None
    device: DeviceLost | None = None
    keeps: bool = False


Event = Alive | Here | Loading | Ready | Tokens | Scores | Embedded | Refused | Load | Failed

_encoder = msgspec.json.Encoder()
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_images: msgspec.msgpack.Decoder[tuple[ImageInput, ...]] = msgspec.msgpack.Decoder(tuple[ImageInput, ...])
_T = TypeVar("_T")


def encode(message: Order | Event) -> bytes:
    """``message`` as one line."""
    return _encoder.encode(message) + b"\n"


def attached(number: int, images: tuple[ImageInput, ...]) -> Iterator[Attach]:
    """``images`` of request ``number``, in pieces: they may be larger than a message."""
    data = msgspec.msgpack.encode(images)
    for begin in range(0, len(data), PIECE):
        yield Attach(number, data[begin : begin + PIECE])


def images_of(data: bytes) -> tuple[ImageInput, ...]:
    """Images whose pieces, joined, are ``data``. Raises `EngineError` where they are not."""
    return _decode(_images, data, limit=len(data))


def decode_event(line: bytes) -> Event:
    """Event that a rank sent. Raises `EngineError` where ``line`` is no event."""
    return _decode(_events, line)


def decode_order(line: bytes) -> Order:
    """Order that a rank got. Raises `EngineError` where ``line`` is no order."""
    return _decode(_orders, line)


def _decode(
    decoder: msgspec.json.Decoder[_T] | msgspec.msgpack.Decoder[_T], line: bytes, limit: int | None = None
) -> _T:
    if len(line) > (LINE_LIMIT if limit is None else limit):
        raise EngineError(f"a control message has {len(line):,} bytes, more than {LINE_LIMIT:,}")
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise EngineError(
            f"a control message cannot be read ({error}); do the server and all ranks run the same version of Ferrule?"
        ) from None
