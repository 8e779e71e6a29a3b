"""`ferrule serve --replicas`: its words, and where the copies go."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ferrule.cli.main import app
from ferrule.cli.serving import devices, this_machine
from ferrule.cli.serving.replicas import parse_replicas, places_of
from ferrule.engine import EngineOptions, SamplingParams
from ferrule.engine.host.prepare import PreparedModel
from ferrule.errors import ConfigError, PlanError
from ferrule.model import read_model
from ferrule.plan import DeviceSpec, make_plan

SPEC = read_model("llama-3.2-3b", weights="int4")
MODEL = PreparedModel(Path("/x"), SPEC, make_plan(SPEC), cast(Any, None), SamplingParams(), frozenset(), "")


def test_a_number_or_auto() -> None:
    assert [parse_replicas(text) for text in (None, "1", "2", "64", "auto")] == [None, None, 2, 64, 0]
    for text in ("0", "65", "two", "-1", "1.5"):
        with pytest.raises(ConfigError, match="is neither a number from 1 to 64 nor auto"):
            parse_replicas(text)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("m", "--replicas", "many"), "--replicas 'many' is neither a number"),
        (("m", "--replicas", "2", "--plan", "plan.json"), "--plan says where the ranks of one copy go"),
        (("a", "b", "--replicas", "2"), "--replicas is for one model"),
    ],
)
def test_what_cannot_be_is_said(words: tuple[str, ...], told: str) -> None:
    answer = CliRunner().invoke(app, ["serve", *words], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert answer.exit_code == 2
    assert told in answer.output


def test_copies_on_processors_are_planned_for_their_part_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    device = DeviceSpec("here", 4 << 30, 50e9, {"bf16": 1e12}, device="cpu")
    monkeypatch.setattr(this_machine.ThisMachine, "_told", lambda *_: device)
    options = EngineOptions("m")
    model, places = places_of(Console(), options, MODEL, 2, split=False)
    assert [place.options.copies for place in places] == [2, 2]
    assert model.plan.world_size == 1
    with pytest.raises(PlanError, match=r"llama-3.2-3b does not fit"):
        places_of(Console(), options, MODEL, 4, split=False)
    model, places = places_of(Console(), options, MODEL, 0, split=False)
    assert [place.options.copies for place in places] == [1], "another copy would share the same memory"


def test_devices_by_name_need_no_measuring_and_unknown_ones_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices_of", lambda *_: ())
    named = EngineOptions("m", tensor=2, device="cuda:0,cuda:1,cuda:2,cuda:3")
    _, places = places_of(Console(), named, MODEL, 2, split=True)
    assert [place.options.device for place in places] == ["cuda:0,cuda:1", "cuda:2,cuda:3"]
    for split in (True, False):
        with pytest.raises(ConfigError, match="replicas need devices of their own"):
            places_of(Console(), EngineOptions("m", device="cuda"), MODEL, 2, split=split)
