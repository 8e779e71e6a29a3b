"""What sees: from an image's features to what stands for its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ferrule.engine.devices import Device, RankGroup
from ferrule.engine.rank.batch import Batch, Picture
from ferrule.engine.rank.vision.sights import unpacked
from ferrule.errors import EngineError
from ferrule.plan import Shard


@dataclass
class _Seen:
    """``rows`` (placeholders, 1 + deep, width): what stands for an image, of which ``used`` are computed already."""

    rows: Tensor
    used: int = 0


class Tower:
    """Puts what is seen in the places of the embeddings of ``model``'s placeholders, and adds to the outputs of its
    first layers what these are told of it, too (DeepStack: Meng et al. 2024).

    Ranks of the first stage see; ``group`` are those of this one, each of which computes some of a batch's images for
    all, so that they have equal numbers. Where later stages have layers that are told of images, what is seen is passed
    on to them: (placeholders of a batch, `depths`, width).
    """

    def __init__(
        self, model: Any, base: Any, shard: Shard, group: RankGroup, device: Device, dtype: torch.dtype
    ) -> None:
        self._inner, self._group, self._device, self._dtype = model.model, group, device, dtype
        self._image_token: int = model.config.image_token_id
        self._width: int = base.config.hidden_size
        self.depths = depths_of(model.config)
        self.sees = shard.has_embedding
        self.passes_on = shard.last_layer < self.depths - 1
        self.given = torch.empty((0, self.depths, self._width), dtype=dtype)
        """What is seen of the batch that ran last."""
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._places: Tensor | None = None
        if self.sees:
            base.embed_tokens.register_forward_hook(self._put)
        for index in range(shard.first_layer, min(self.depths - 1, shard.last_layer)):
            base.layers[index].register_forward_hook(partial(self._add, index + 1))

    def forget(self, batch: Batch) -> None:
        """Drop what is seen of sequences that are released, or begin again."""
        gone = {*batch.released, *(span.sequence for span in batch.spans if span.seen == 0)}
        if self._seen and gone:
            self._seen = {key: seen for key, seen in self._seen.items() if key[0] not in gone}

    def clear(self) -> None:
        """Drop all that is seen."""
        self._seen = {}

    def look(self, batch: Batch, features: Sequence[bytes]) -> Tensor:
        """What is seen of the pictures of ``batch``: (placeholders, `depths`, width). ``features``: of those that begin
        in it."""
        begun = [picture for picture in batch.pictures if picture.size]
        for number, (picture, data) in enumerate(zip(begun, features, strict=True)):
            key = batch.spans[picture.span].sequence, picture.begin
            self._seen[key] = _Seen(self._look(picture, data, mine=number % self._group.size == self._group.rank))
        parts = []
        for picture in batch.pictures:
            key, count = (batch.spans[picture.span].sequence, picture.begin), len(self._placeholders(batch, picture))
            seen = self._seen[key]
            parts.append(seen.rows[seen.used : seen.used + count])
            seen.used += count
            if seen.used == picture.rows:
                del self._seen[key]
        return torch.cat(parts)

    def count(self, batch: Batch) -> int:
        """Number of placeholders in ``batch``."""
        return sum(len(self._placeholders(batch, picture)) for picture in batch.pictures)

    @contextmanager
    def told(self, batch: Batch, given: Tensor) -> Iterator[None]:
        """Run ``batch``, of whose pictures ``given`` is seen."""
        places = [place for picture in batch.pictures for place in self._placeholders(batch, picture)]
        self.given, self._places = given, self._device.upload(torch.tensor(places, dtype=torch.long))
        try:
            yield
        finally:
            self._places = None

    def _look(self, picture: Picture, data: bytes, *, mine: bool) -> Tensor:
        shape = (picture.rows, self.depths, self._width)
        rows = torch.zeros(shape, dtype=self._dtype, device=self._device.torch_device)
        if mine:
            found = self._rows(data)
            if found.shape != shape:
                raise EngineError(f"an image covers {picture.rows} tokens of its prompt, but {found.shape[0]} are seen")
            rows.copy_(found)
        if self._group.size > 1:
            self._group.all_reduce(rows)  # one term of it is not zero
        return rows

    def _rows(self, data: bytes) -> Tensor:
        given = {}
        for name, feature in unpacked(data).items():
            values = torch.frombuffer(bytearray(feature.data), dtype=getattr(torch, feature.dtype)).view(feature.shape)
            given[name] = self._device.upload(values.to(self._dtype) if values.is_floating_point() else values)
        found = self._inner.get_image_features(**given, return_dict=True)
        by_depth = [found.pooler_output, *(found.deepstack_features if self.depths > 1 else ())]
        return torch.stack([torch.cat([each.reshape(-1, self._width) for each in depth]) for depth in by_depth], dim=1)

    def _placeholders(self, batch: Batch, picture: Picture) -> list[int]:
        """Places in ``batch`` of the placeholders of ``picture``."""
        span = batch.spans[picture.span]
        offset = sum(each.tokens for each in batch.spans[: picture.span]) - span.seen
        first, last = max(picture.begin, span.seen), min(picture.begin + picture.tokens, span.seen + span.tokens)
        return [place for place in range(first + offset, last + offset) if batch.tokens[place] == self._image_token]

    def _put(self, _: nn.Module, __: Any, embedded: Tensor) -> Tensor | None:
        if self._places is None:
            return None
        return embedded.index_copy(1, self._places, self.given[:, 0].unsqueeze(0))

    def _add(self, depth: int, _: nn.Module, __: Any, hidden: Tensor) -> Tensor | None:
        if self._places is None:
            return None
        return hidden.index_add(1, self._places, self.given[:, depth].unsqueeze(0))


def depths_of(config: Any) -> int:
    """1, and how many of the first layers are told of images: of a model with this whole ``config``."""
    return 1 + len(getattr(config.vision_config, "deepstack_visual_indexes", ()))
