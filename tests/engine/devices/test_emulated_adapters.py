"""Adapters on the emulated accelerator: their steps run beside captured ones of the base."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_emulated_captured import alone, answers, machines, reserve
from tiny_adapters import make_adapter
from tiny_models import make

from ferrule.engine.adapters import find
from ferrule.engine.options import Adapter

pytestmark = pytest.mark.slow


def test_steps_of_adapters_run_beside_captured_ones(tmp_path: Path) -> None:
    machines()
    base = make("llama", tmp_path / "base")
    adapters = (find(Adapter("one", str(make_adapter(base, tmp_path / "one")))),)
    given = []
    for batch in answers():  # sequence 3 has the adapter, and in some batches others on both of its sides
        numbers = tuple(int(span.sequence == 3) for span in batch.spans)
        given.append(msgspec.structs.replace(batch, adapters=numbers) if any(numbers) else batch)
    assert len({bool(batch.adapters) for batch in given[1:]}) == 2
    runner, other = reserve(alone(base, adapters=adapters)), alone(base, graphs=False, adapters=adapters)
    assert runner.captured is not None
    plain = alone(base, graphs=False)
    differences = []
    for batch, without in zip(given, answers(), strict=True):
        found, expected, unchanged = (
            each.device.download(logits).clone()
            for each, logits in ((r, r.run(b)) for r, b in ((runner, batch), (other, batch), (plain, without)))
            if logits is not None
        )
        assert (runner.captured.size(batch) is None) >= bool(batch.adapters)
        assert (found - expected).abs().max() < 1e-4
        differences += [
            (span.sequence == 3, float(row.abs().max()) > 1e-3)
            for span, row in zip(batch.spans, found - unchanged, strict=True)
        ]
    assert set(differences) == {(True, True), (False, False)}, "the adapter's sequences, and no others"
    assert any(step.script.launches for step in runner.captured.steps.values())
