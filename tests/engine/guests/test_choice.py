"""Which engine runs a model, and the page that tells what each can do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrule.engine.abilities import CONSTRAINTS, FIELDS, Abilities
from ferrule.engine.guests.choice import ModelFacts, choose, facts_of
from ferrule.engine.guests.registry import ENGINES, GUESTS, guest_named
from ferrule.errors import ConfigError, ModelError
from ferrule.plan.runtime import RUNTIMES, runtime_named

PAGE = Path(__file__).parents[3] / "docs" / "engines" / "README.md"
ALL = ("llama.cpp", "vllm", "mlx")
FOREIGN = ModelFacts("gguf", "x.gguf: blk.0 is of the type IQ1_S, which is not run here; get another")


@pytest.mark.parametrize(
    ("model", "device", "installed", "own", "engine", "why"),
    [
        (FOREIGN, "cpu", ALL, (), "llama.cpp", "IQ1_S, which is not run here)"),
        (FOREIGN, "cpu", (), (), "ferrule", "is not installed"),
        (FOREIGN, "cpu", ALL, ("--plan",), "ferrule", "--plan is for it alone"),
        (ModelFacts("gguf"), "cuda", ALL, (), "ferrule", "it runs this model"),
        (ModelFacts("safetensors"), "cpu", ALL, (), "ferrule", "it runs this model"),
        (ModelFacts("safetensors"), "cuda:0,cuda:1", ALL, (), "ferrule", "it runs this model"),
        (ModelFacts("safetensors"), "cuda", ("mlx",), (), "ferrule", "it runs this model"),
        (ModelFacts("mlx"), "mps", ALL, (), "mlx", "the device is Metal"),
        (ModelFacts("mlx"), "cuda", ALL, (), "ferrule", "it runs this model"),
        (ModelFacts("safetensors"), "auto", ALL, (), "ferrule", "it runs this model"),
    ],
)
def test_choice(model, device, installed, own, engine, why) -> None:
    choice = choose(model, device, installed, own)
    assert choice.engine == engine
    assert why in choice.why
    assert ";" not in choice.why


def test_facts_of_files(tmp_path: Path) -> None:
    assert facts_of("demo", deep=True) == ModelFacts("safetensors")
    assert facts_of("owner/name", deep=True) == ModelFacts()
    (tmp_path / "config.json").write_text('{"quantization": {"group_size": 64, "bits": 4}}')
    assert facts_of(str(tmp_path), deep=True) == ModelFacts("mlx")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    facts = facts_of(str(tmp_path / "broken.gguf"), deep=True)
    assert facts.form == "gguf"
    assert facts.refusal is not None
    assert facts_of(str(tmp_path / "broken.gguf"), deep=False).refusal is None
    with pytest.raises(ModelError, match="no such file"):
        facts_of(str(tmp_path / "none.gguf"), deep=True)


def test_engines_are_called_as_the_planner_calls_them() -> None:
    assert all(runtime_named(name) is not None for name in ENGINES)
    assert runtime_named("llama.cpp") is runtime_named("llama.cpp-rpc") is RUNTIMES["llama.cpp-rpc"]
    assert runtime_named("other") is None
    assert guest_named("llama.cpp") is GUESTS["llama.cpp"]
    with pytest.raises(ConfigError, match=r"is not one of auto, ferrule, llama\.cpp"):
        guest_named("llamacpp")


def test_the_page_tells_what_each_can_do() -> None:
    _, _, below = PAGE.read_text().partition("## What each can do")
    table = re.findall(r"^\|(.*)\|$", below.partition("\n## ")[0], re.MULTILINE)
    header, _, *lines = ([cell.strip().replace("`", "") for cell in line.split("|")] for line in table)
    assert header[1:] == list(ENGINES)
    told = {name: dict(zip(header[1:], cells, strict=True)) for name, *cells in lines}
    assert set(told) == {*FIELDS, *(f"constraint {kind}" for kind in CONSTRAINTS), "images", "embeddings"}
    for name, cells in told.items():
        for engine, cell in cells.items():
            assert cell == ("yes" if can(ENGINES[engine], name) else "no"), (name, engine)


def can(engine: Abilities, name: str) -> bool:
    kind = name.removeprefix("constraint ")
    if kind in CONSTRAINTS:
        return kind in engine.constraints
    return getattr(engine, name) if name in ("images", "embeddings") else name in engine.fields
