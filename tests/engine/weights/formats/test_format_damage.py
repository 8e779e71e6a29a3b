"""Whatever is wrong with packed weights or what is said of them: an error of ours, or numbers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import test_format_compressed_tensors as compressed
import test_format_mxfp4 as mxfp4
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_models import module, write
from test_format_splits import MAKERS

from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.errors import ModelError

WEIGHT = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
STORED = {name: (told, module(make(WEIGHT)[0])) for name, (told, make) in MAKERS.items()}
STORED |= {
    kind: (compressed.told(kind), module(compressed.quantise(WEIGHT, kind)[0]))
    for kind in ("int4 zeros", "int8 zeros", "fp8 blocks", "nvfp4")
}
STORED["mxfp4"] = (mxfp4.TOLD, mxfp4.named(mxfp4.experts(2, 64, 32)[0]))
DTYPES = [torch.int32, torch.uint8, torch.int8, torch.float16, torch.float32, torch.bfloat16, torch.float8_e4m3fn]
VALUES = st.sampled_from([None, 0, -1, 3, 8, 1 << 40, 0.5, True, "", "x", "re:(", [], [1], [0, 0], {}, {"weights": {}}])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from([*STORED]))
def test_damage_is_an_error_of_ours(tmp_path: Path, data: st.DataObject, name: str) -> None:
    told, tensors = STORED[name]
    said: dict[str, Any] = dict(told)
    kept = dict(tensors)
    for key in data.draw(st.sets(st.sampled_from(sorted(tensors)), max_size=2)):
        if data.draw(st.booleans()):
            del kept[key]
            continue
        shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 31, 32, 64]), max_size=3))
        dtype = data.draw(st.sampled_from([tensors[key].dtype, *DTYPES]))
        kept[key] = torch.randint(0, 120, shape).to(dtype)
    for key in data.draw(st.sets(st.sampled_from(sorted(told)), max_size=2)):
        if key != "quant_method":
            said[key] = data.draw(VALUES)
    with suppress(ModelError), Checkpoint(write(tmp_path, kept, said)) as checkpoint:
        for key in checkpoint.tensors:
            checkpoint.read(key)
