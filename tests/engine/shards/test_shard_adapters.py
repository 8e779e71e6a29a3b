"""Files of adapters between ranks that are threads, over real groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_threads import on_all, thread_groups

from ferrule.engine.adapters import CONFIG, WEIGHTS, find
from ferrule.engine.options import Adapter
from ferrule.engine.shards import adapters
from ferrule.errors import EngineError, ModelError
from ferrule.fabric import Group


def test_hosts_without_an_adapter_receive_and_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_MODEL_CACHE", str(tmp_path / "cache"))
    given = tmp_path / "poet"
    given.mkdir()
    (given / CONFIG).write_text(json.dumps({"peft_type": "LORA"}))
    (given / WEIGHTS).write_bytes(bytes(range(256)) * 5000)
    here = find(Adapter("poet", str(given)))
    away = Adapter("poet", str(tmp_path / "elsewhere" / "poet"), here.identity)
    groups = thread_groups(3)

    def obtained(each: Group, adapter: Adapter) -> str:
        (found,) = adapters.obtain_adapters(each, (adapter,))
        return found.path

    kept = tmp_path / "cache" / "adapters" / here.identity
    assert on_all(groups, lambda each: obtained(each, away if each.rank else here)) == [str(given), *[str(kept)] * 2]
    assert find(Adapter("poet", str(kept))).identity == here.identity
    assert sorted(file.name for file in kept.iterdir()) == [CONFIG, WEIGHTS]
    assert on_all(groups, lambda each: obtained(each, away)) == [str(kept)] * 3, "it is not sent again"
    (kept / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"adapter 'poet': none of the ranks' hosts .* has .*elsewhere/poet"):
        on_all(groups, lambda each: obtained(each, away))
    monkeypatch.setattr(adapters, "MOST_BYTES", 1000)
    with pytest.raises(EngineError, match=r"copy .*poet to the same path there"):
        adapters._pack(given, "poet")
