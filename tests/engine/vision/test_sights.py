"""Images of a sequence as the scheduler sees them: pieces that do not cut them, and positions by axis."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from ferrule.engine.messages import Add, Attach, attached
from ferrule.engine.rank.batch import Batch, Picture, Span
from ferrule.engine.rank.driver.limits import Limits
from ferrule.engine.rank.driver.scheduler import Scheduler
from ferrule.engine.rank.vision.incoming import Incoming, features_of
from ferrule.engine.rank.vision.sights import Seeing, Sights, packed, unpacked
from ferrule.engine.types import Feature, ImageInput, SamplingParams
from ferrule.errors import EngineError

IMAGE = 99
CONFIG: Any = SimpleNamespace(
    model_type="qwen3_vl", image_token_id=IMAGE, vision_config=SimpleNamespace(spatial_merge_size=2)
)


def image(begin: int, rows: int, columns: int) -> ImageInput:
    """Of so many patches."""
    grid = Feature("int64", (1, 3), np.array([1, rows, columns]).tobytes())
    return ImageInput(begin, rows * columns // 4, {"image_grid_thw": grid})


def prompt(text: int, *images: ImageInput) -> list[int]:
    tokens = [1] * text
    for one in images:
        tokens[one.begin : one.begin + one.tokens] = [IMAGE] * one.tokens
    return tokens


def test_positions_by_axis_are_those_of_transformers() -> None:
    images = (image(3, 4, 8), image(15, 10, 2))
    tokens = prompt(26, *images)
    found = Seeing(CONFIG).sights(tokens, images)
    model: Any = SimpleNamespace(config=CONFIG)
    model.get_vision_position_ids = lambda *given, **more: Qwen3VLModel.get_vision_position_ids(model, *given, **more)
    ids = torch.tensor([tokens])
    grids = torch.tensor([[1, 4, 8], [1, 10, 2]])
    positions, shift = Qwen3VLModel.get_rope_index(model, ids, (ids == IMAGE).int(), grids)
    assert found.axes is not None
    assert found.axes.shift == int(shift)
    assert (found.axes.of(0, 26) == positions[:, 0].numpy()).all()
    assert found.axes.of(24, 29).tolist() == [[24 + int(shift) + index for index in range(5)]] * 3
    assert [each.rows for each in found.images] == [8, 5]


def test_what_sees_each_other_is_computed_at_once() -> None:
    config: Any = SimpleNamespace(model_type="gemma3", image_token_id=IMAGE)
    images = (image(3, 4, 8), image(15, 10, 2))
    sights = Seeing(config).sights(prompt(26, *images), images)
    assert (sights.together, sights.axes) == (True, None)
    assert [sights.piece(0, last) for last in (2, 3, 7, 11, 12, 16)] == [2, 3, 3, 11, 12, 15]
    assert [sights.piece(first, first + 2) for first in (3, 11, 14, 15)] == [11, 13, 15, 20]
    apart = Sights(sights.images)
    assert [apart.piece(0, last) for last in (2, 7)] == [2, 7]


def test_batches_tell_of_images_and_bring_each_once() -> None:
    scheduler = Scheduler(Limits(batch_tokens=6, cache_tokens=100, sequences=4, context=100), frozenset())
    one = image(3, 4, 8)
    tokens, params = prompt(13, one), SamplingParams(max_tokens=2)
    sights = Seeing(CONFIG).sights(tokens, (one,))
    size = len(sights.images[0].features)
    scheduler.add(7, tokens, params, sights=sights)
    batches: list[Batch] = []
    while (batch := scheduler.next_batch()) is not None:
        batches.append(batch)
        scheduler.complete(batch, [5] * sum(span.sample for span in batch.spans))
    assert [batch.pictures for batch in batches] == [
        (Picture(0, 3, 8, 8, size),),
        (Picture(0, 3, 8, 8, 0),),
        (),
        (),
    ]
    assert [features_of(batch, lambda _: sights) for batch in batches] == [[sights.images[0].features], [], [], []]
    assert sights.axes is not None
    assert batches[-1].axes == (sights.axes.shift + 13,) * 3
    scheduler.add(8, [1, 2, 3], params)
    text = scheduler.next_batch()
    assert text is not None
    assert (text.spans, text.axes) == ((Span(8, 0, 3, True, 3),), ()), "text alone is as it was"


def test_images_arrive_whole_or_not_at_all() -> None:
    one = image(3, 4, 8)
    order = Add(7, tuple(prompt(13, one)), (), SamplingParams(), images=True)
    incoming = Incoming(Seeing(CONFIG))
    pieces = list(attached(7, (one,)))
    for piece in pieces:
        incoming.take(piece)
    found = incoming.sights(order)
    assert found is not None
    assert unpacked(found.features(3)) == one.features
    incoming.take(Attach(7, b"more"))
    incoming.drop(7)
    for broken in (Incoming(None), incoming):
        with pytest.raises(EngineError, match=r"takes text only|cannot be read"):
            broken.sights(order)
    with pytest.raises(EngineError, match=r"image that it cannot read .* same version"):
        unpacked(packed(one.features)[:-1])
