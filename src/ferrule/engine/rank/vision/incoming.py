"""Images of requests on the driver, from their arrival to the batches that they begin in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from ferrule.engine.messages import Add, Attach, images_of
from ferrule.engine.rank.batch import Batch
from ferrule.engine.rank.vision.sights import Seeing, Sights
from ferrule.errors import EngineError


class Incoming:
    """``seeing``: of the model; None where it takes text only."""

    def __init__(self, seeing: Seeing | None) -> None:
        self._seeing = seeing
        self._pieces: defaultdict[int, bytearray] = defaultdict(bytearray)

    def take(self, order: Attach) -> None:
        self._pieces[order.id] += order.piece

    def drop(self, identity: int) -> None:
        self._pieces.pop(identity, None)

    def sights(self, order: Add) -> Sights | None:
        """The images of ``order``, whose pieces have come. Raises `EngineError` where they cannot be read."""
        if not order.images:
            return None
        if self._seeing is None:
            raise EngineError("a request has images, and this model takes text only")
        return self._seeing.sights(order.prompt, images_of(bytes(self._pieces.pop(order.id, b""))))


def features_of(batch: Batch, sights: Callable[[int], Sights | None]) -> list[bytes]:
    """Features of the images that begin in ``batch``. ``sights``: those of a sequence."""
    found = []
    for picture in batch.pictures:
        own = sights(batch.spans[picture.span].sequence)
        if picture.size and own is not None:
            found.append(own.features(picture.begin))
    return found
