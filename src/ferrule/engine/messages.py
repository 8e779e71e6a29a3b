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
from ferrule.engine.turn import FIRST_COME, Turn
from ferrule.engine.types import (
    FinishReason,
    ImageInput,
    PrefixUse,
    Progress,
    PromptToken,
    RankInfo,
    SamplingParams,
    StreamUse,
)
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
    given up does not know. ``options``: of this one, for ranks that have met before. ``secret`` (hexadecimal): from
    which the keys of hand-over groups are derived; each rank has it from here, by its own control connection."""

    number: int = 0
    options: RankOptions | None = None
    secret: str = ""


class Hand(msgspec.Struct, frozen=True, array_like=True):
    """Of a prompt the blocks from ``first`` up to ``last`` (not included) are for ``request`` of the other ranks of
    hand-over group ``number``. ``whole``: they go when all are computed."""

    request: int
    first: int
    last: int
    number: int
    whole: bool = False


class Add(msgspec.Struct, frozen=True, tag="add", tag_field="op"):
    """A request. ``made``: tokens of its answer that there were before the ranks were lost; ``scored``: as many of the
    prompt's tokens had their log-probabilities. ``images``: whether it has some, which came before it (`Attach`).
    ``hand``: what of it goes to other ranks."""

    id: int
    prompt: tuple[int, ...]
    made: tuple[int, ...]
    params: SamplingParams
    scored: int = 0
    images: bool = False
    hand: Hand | None = None


class Attach(msgspec.Struct, frozen=True, tag="attach", tag_field="op"):
    """The next piece of the images of request ``id``, which follows: see `attached`."""

    id: int
    piece: bytes


class Embed(msgspec.Struct, frozen=True, tag="embed", tag_field="op"):
    """A request for a vector."""

    id: int
    prompt: tuple[int, ...]
    pooling: PoolingMode
    turn: Turn = FIRST_COME


class Learn(msgspec.Struct, frozen=True, tag="learn", tag_field="op"):
    """The model's tokenizer, as ``tokenizer.json`` has it: comes before the first request that has a constraint."""

    tokenizer: str


class Cancel(msgspec.Struct, frozen=True, tag="cancel", tag_field="op"):
    id: int


class Listen(msgspec.Struct, frozen=True, tag="listen", tag_field="op"):
    """The driver is to be the first rank of a hand-over group, and to say where that is joined (`Listening`).
    ``beyond``: ranks of it are on other hosts."""

    beyond: bool = False


class Join(msgspec.Struct, frozen=True, tag="join", tag_field="op"):
    """All ranks are to join hand-over group ``number``, of ``size`` ranks, at ``addresses``: those of this engine are
    the ones from ``first`` on, the driver before all others."""

    number: int
    first: int
    size: int
    addresses: tuple[str, ...]


class Hold(msgspec.Struct, frozen=True, omit_defaults=True, tag="hold", tag_field="op"):
    """The model moves: the ranks are to compute nothing more, and to hold what their caches have for those that go on
    with it (`CachesHeld`). ``leaving``: the ranks that are to be elsewhere; the others keep their weights. Empty: all
    drop their weights, and wait to `Join` the new ones."""

    leaving: tuple[int, ...] = ()


class TakeOver(msgspec.Struct, frozen=True, tag="take", tag_field="op"):
    """All ranks are to join those that hold caches for them, and to take these over (`TakenOver`)."""

    join: Join


class Unhanded(msgspec.Struct, frozen=True, tag="unhanded", tag_field="op"):
    """No more blocks of request ``id`` will come from other ranks (`Wanted`)."""

    id: int


Order = Start | Meet | Learn | Attach | Add | Embed | Cancel | Listen | Join | Unhanded | Hold | TakeOver


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
    """The next token of request ``id``. ``cached``, ``guessed``, ``wrong``: as of `Token`."""

    id: int
    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    finish: FinishReason | None
    cached: int | None = None
    guessed: bool = False
    wrong: int = 0


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


class Listening(msgspec.Struct, frozen=True, tag="listening", tag_field="event"):
    """Where a hand-over group is joined."""

    addresses: tuple[str, ...]


class Joined(msgspec.Struct, frozen=True, tag="joined", tag_field="event"):
    """All ranks have joined hand-over group ``number``."""

    number: int


class Parted(msgspec.Struct, frozen=True, tag="parted", tag_field="event"):
    """Hand-over group ``number`` has ended, or could not be made."""

    number: int
    reason: str


class Wanted(msgspec.Struct, frozen=True, tag="wanted", tag_field="event"):
    """Blocks ``first`` up to ``last`` (not included) of the prompt of request ``id`` are wanted from the other
    ranks of hand-over group ``number``."""

    id: int
    first: int
    last: int
    number: int


class Received(msgspec.Struct, frozen=True, tag="received", tag_field="event"):
    """Of request ``id`` so many ``blocks`` of those `Wanted` have come, and no more are waited for."""

    id: int
    blocks: int
    wanted: int


class HandedOver(msgspec.Struct, frozen=True, tag="handed", tag_field="event"):
    """What this rank had to send for ``request`` of the other ranks has come there: ``size`` bytes in ``seconds``, of
    which so many were ``behind`` the last layer's computing."""

    request: int
    size: int
    seconds: float
    behind: float


class CachesHeld(msgspec.Struct, frozen=True, tag="held", tag_field="event"):
    """This rank holds ``size`` bytes of caches for others (`Hold`). ``reason``: why it does not."""

    size: int = 0
    reason: str = ""


class TakenOver(msgspec.Struct, frozen=True, omit_defaults=True, tag="taken", tag_field="event"):
    """Of ``asked`` tokens of sequences that go on so many ``tokens`` need not be computed again, and so many ``others``
    of prompts that may come again: ``size`` bytes in ``seconds``. ``computing``: seconds that computing ``tokens``
    would take, as far as is known. ``reason``: why they are no more."""

    asked: int = 0
    tokens: int = 0
    others: int = 0
    size: int = 0
    seconds: float = 0.0
    computing: float = 0.0
    reason: str = ""


class Refused(msgspec.Struct, frozen=True, tag="refused", tag_field="event"):
    """Request ``id`` cannot be answered, or not further, by its own fault. ``code``: as in `RequestError`."""

    id: int
    message: str
    code: str


class Load(msgspec.Struct, frozen=True, tag="load", tag_field="event"):
    """Number of sequences that run and that wait. ``prefix`` and ``streamed``: as of `Health`."""

    running: int
    waiting: int
    prefix: PrefixUse | None = None
    streamed: StreamUse | None = None


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


HandOverEvent = Listening | Joined | Parted | Wanted | Received | HandedOver
Event = (
    Alive
    | Here
    | Loading
    | Ready
    | Tokens
    | Scores
    | Embedded
    | Refused
    | Load
    | Failed
    | HandOverEvent
    | CachesHeld
    | TakenOver
)

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
