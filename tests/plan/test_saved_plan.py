"""Plans in files: what `ferrule plan --json` prints is what `ferrule serve --plan` runs, or says why not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ferrule.cli.plan.json import answer_json
from ferrule.errors import ConfigError, PlanError
from ferrule.model import kept_in, read_model
from ferrule.plan import (
    ClusterSpec,
    DeviceSpec,
    Question,
    Workload,
    parse_plan,
    plan_machine,
    read_plan,
    search,
)
from ferrule.plan.explain import bottleneck

DEMO = read_model("demo")
BOX = DeviceSpec("box", 8 << 30, 50e9, {"fp32": 1e12})


def printed(**changes: Any) -> dict[str, Any]:
    question = Question(DEMO, ClusterSpec((BOX,)), Workload(context=64, prompt=32))
    answers = search(question)
    assert answers.best is not None
    found = bottleneck(question, answers.best)
    fields = answer_json(question, answers, answers.candidates, answers.best, found, [], "Because.")
    return json.loads(json.dumps(msgspec.to_builtins(fields))) | changes


def test_what_is_printed_is_read_and_runs(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(printed(), indent=2))
    saved = read_plan(file)
    plan = saved.for_model(DEMO)
    assert (plan.strategy, plan.devices, plan.layers) == ("single", ("box",), DEMO.layers)
    assert plan.reason == "one rank holds the whole model. Because."
    saved.require_hosts({"box"}, "this machine")
    again = parse_plan(saved.to_json(), "a record")
    assert again.plan == saved.plan
    assert again.model == saved.model


def test_where_ranks_compute_is_read_and_kept() -> None:
    fields = printed()
    assert parse_plan(json.dumps(fields), "plan.json").device is None
    half = DEMO.layers // 2
    stages = [
        {"devices": ["a"], "first_layer": 0, "last_layer": half},
        {"devices": ["b"], "first_layer": half, "last_layer": DEMO.layers},
    ]
    fields["plans"] = [{"stages": stages}]
    fields["cluster"]["devices"] = [{"name": "a", "host": "box", "device": "cuda:1"}, {"name": "b"}]
    saved = parse_plan(parse_plan(json.dumps(fields), "plan.json").to_json(), "again")
    assert (saved.hosts, saved.device) == (("box", "b"), "cuda:1,cpu")
    fields["cluster"]["devices"][1]["device"] = "cuda:1"
    assert parse_plan(json.dumps(fields), "plan.json").device == "cuda:1"


def test_prompts_apart_are_read_each_as_a_plan_by_itself() -> None:
    fields = printed()
    stage = {"first_layer": 0, "last_layer": DEMO.layers}
    prompts = {"stages": [{"devices": ["b"], **stage}]}
    fields["plans"] = [{"stages": [{"devices": ["a"], **stage}], "prompts": prompts}]
    fields["cluster"]["devices"] = [{"name": "a", "host": "box"}, {"name": "b", "host": "other"}]
    saved = parse_plan(parse_plan(json.dumps(fields), "plan.json").to_json(), "again")
    assert saved.prompts is not None
    assert (saved.hosts, saved.prompts.hosts, saved.alone.prompts) == (("box",), ("other",), None)
    whole = saved.for_model(DEMO)
    assert whole.prompts is not None
    assert (whole.alone.devices, whole.prompts.devices) == (("a",), ("b",))
    with pytest.raises(PlanError, match="places ranks on other, and this machine has only box"):
        saved.require_hosts({"box"}, "this machine")
    fields["cluster"]["devices"][1]["device"] = "cuda:0"
    on_gpu = parse_plan(json.dumps(fields), "plan.json")
    assert on_gpu.prompts is not None
    assert (on_gpu.prompts.device, on_gpu.device) == ("cuda:0", "cpu")
    assert on_gpu.for_model(DEMO).prompts is not None
    with pytest.raises(PlanError, match="quantised keys and values over between processors only"):
        on_gpu.for_model(kept_in(DEMO, "int8"))
    fields["plans"][0]["prompts"]["stages"][0]["devices"] = ["a"]
    with pytest.raises(ConfigError, match="a device is for prompts or for tokens"):
        parse_plan(json.dumps(fields), "plan.json")


def test_a_plan_of_an_earlier_version_tells_no_kind_and_is_read() -> None:
    fields = printed()
    assert fields.pop("kind") == "plan"
    assert parse_plan(json.dumps(fields), "plan.json").plan.devices == ("box",)


def test_a_model_that_differs_is_named_with_the_difference() -> None:
    saved = parse_plan(json.dumps(printed()), "plan.json")
    other = replace(DEMO, name="other", decoder=DEMO.decoder[:4], vocab_size=7)
    with pytest.raises(PlanError, match=rf"layers {DEMO.layers} and not 4, vocab size \d+ and not 7, which other has"):
        saved.for_model(other)
    heavier = replace(DEMO, embedding=replace(DEMO.embedding, bytes=DEMO.bytes * 2))
    with pytest.raises(PlanError, match=r"counts on weights of .* plan again without --weights"):
        saved.for_model(heavier)


def test_hosts_that_are_not_there_are_named() -> None:
    saved = parse_plan(json.dumps(printed()), "plan.json")
    with pytest.raises(PlanError, match="places ranks on box, and this cluster has only a, b"):
        saved.require_hosts(["b", "a"], "this cluster")


def test_a_plan_that_the_engine_cannot_run_is_refused_whatever_the_file_says() -> None:
    fields = printed()
    whole, half = DEMO.layers, DEMO.layers // 2
    shares = [[1, 1, 0.5, 0.5], [1, 1, 0.5, 0.5]]
    uneven = {"devices": ["a", "b"], "first_layer": 0, "last_layer": whole, "shares": shares, "experts": False}
    fields["plans"] = [fields["plans"][0] | {"stages": [uneven], "obstacle": None}]
    with pytest.raises(
        PlanError, match="cannot be split as the plan says: the built-in engine cuts attention and dense"
    ):
        parse_plan(json.dumps(fields), "plan.json").for_model(DEMO)
    short = {"devices": ["a"], "first_layer": 0, "last_layer": half, "shares": [[1, 1, 1, 1]], "experts": False}
    fields["plans"] = [{"stages": [short]}]
    with pytest.raises(PlanError, match=f"stages hold {half} layers"):
        parse_plan(json.dumps(fields), "plan.json").for_model(DEMO)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2 of the format"),
        ({"kind": "shopping-list"}, "is no plan .*shopping-list"),
        ({"plans": []}, "nothing fitted"),
        ({"best": 9}, "best is 9, and there are"),
        ({"runtime": "mlx"}, "leave --runtime out"),
        ({"model": {"name": "x"}}, "is no plan .*missing required field"),
        ({"plans": [{"stages": [{"devices": [], "first_layer": 0, "last_layer": 1}]}]}, "is no plan"),
        ({"plans": [{"stages": []}]}, "at least one stage"),
        (
            {"plans": [{"stages": [{"devices": ["a"], "first_layer": 0, "last_layer": 1, "shares": [[0, 1, 1, 1]]}]}]},
            "above 0",
        ),
    ],
)
def test_what_is_no_plan_is_refused_with_the_cure(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_plan(json.dumps(printed(**changes)), "plan.json")


def test_what_is_no_json_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no plan .*ferrule plan MODEL --json"):
        parse_plan("no", "plan.json")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_plan(tmp_path / "none.json")


def test_one_machine_holds_the_model_or_says_what_is_missing() -> None:
    assert plan_machine(DEMO, BOX).devices == ("box",)
    large = read_model("llama-3.1-8b")
    with pytest.raises(PlanError, match=r"box needs 1\d\.\d GiB and has 8.0.*--tp 1 loads it all the same") as raised:
        plan_machine(large, BOX)
    assert (raised.value.available, raised.value.exit_code) == (8 << 30, 4)


def test_what_does_not_fit_may_stay_on_a_disk_that_was_measured() -> None:
    large, box = read_model("llama-3.1-8b"), replace(BOX, disk_read=3e9)
    how = r"about 0\.\d+ tokens/s, since \d+\.\d GiB are read with every token from a disk of 3\.0 GB/s"
    with pytest.raises(PlanError, match=rf"with --stream-weights auto it would run at {how}; free some memory"):
        plan_machine(large, box)
    plan = plan_machine(large, box, stream=True)
    assert plan.devices == ("box",)
    assert re.search(rf"It does not fit in memory: {how}", plan.reason)
    assert plan_machine(DEMO, box, stream=True) == plan_machine(DEMO, box)
    with pytest.raises(PlanError, match="too little"):
        plan_machine(large, BOX, stream=True)
