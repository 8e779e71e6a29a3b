"""What `ferrule serve --prefill-tp` takes, and what it does not go with: that is refused before anything loads."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from ferrule.cli.serving.apart import (
    AUTO,
    check_device,
    device_apart,
    hosts_apart,
    parse_prefill,
    ranks_here,
    refuse_apart,
)
from ferrule.engine import EngineOptions
from ferrule.engine.apart.start import check_apart
from ferrule.errors import ConfigError
from ferrule.plan import parse_plan

FLAGS = {"plan": "--plan", "replicas": "--replicas", "cp": "--cp"}


@pytest.mark.parametrize(("given", "told"), FLAGS.items())
def test_ranks_for_prompts_are_of_one_copy(given: str, told: str) -> None:
    others = dict.fromkeys(FLAGS, False)
    refuse_apart(2, **others)
    refuse_apart(None, **{**others, given: True})
    for asked in (2, AUTO):
        with pytest.raises(ConfigError, match=told):
            refuse_apart(asked, **{**others, given: True})


def test_their_number_is_given_or_the_planner_s() -> None:
    assert [parse_prefill(text) for text in (None, "off", "auto", "3")] == [None, None, AUTO, 3]
    for text in ("0", "-1", "many", "1.5", "4096"):
        with pytest.raises(ConfigError, match="neither a number from 1 to 1024 nor auto nor off"):
            parse_prefill(text)


def test_in_a_cluster_their_hosts_are_named_and_answer_nothing_else() -> None:
    assert hosts_apart(2, "a, b", "c,d", cluster=True) == ("a", "b")
    assert hosts_apart(AUTO, None, None, cluster=True) is hosts_apart(2, None, None, cluster=False) is None
    for prefill, given, hosts, cluster, told in (
        (2, None, None, True, "say on which hosts"),
        (2, "a", None, False, "needs a cluster"),
        (None, "a", None, True, "say how many ranks"),
        (AUTO, "a", None, True, "say how many ranks"),
        (2, "a,b", "b,c", True, "b: a host is for prompts or for answers"),
    ):
        with pytest.raises(ConfigError, match=told):
            hosts_apart(prefill, given, hosts, cluster=cluster)


def test_on_one_machine_they_are_those_of_the_plan_and_never_the_planner_s() -> None:
    console = Console(record=True, quiet=False)
    assert [ranks_here(console, prefill, None) for prefill in (None, 2)] == [None, 2]
    assert ranks_here(console, AUTO, None) is None
    assert "on one machine the same ranks compute prompts and answers" in console.export_text()
    stage = {"first_layer": 0, "last_layer": 4}
    sizes = ("layers", "hidden_size", "query_heads", "key_value_heads", "vocab_size", "bytes")
    model = {"name": "m", "stored": "", **dict.fromkeys(sizes, 1)}
    fields = {"version": 1, "model": model, "runtime": "ferrule", "plans": [{"stages": [{"devices": ["a"], **stage}]}]}
    assert ranks_here(console, None, parse_plan(json.dumps(fields), "a plan")) is None
    fields["plans"][0]["prompts"] = {"stages": [{"devices": ["b"], **stage}]}
    saved = parse_plan(json.dumps(fields), "a plan")
    assert ranks_here(console, None, saved) == AUTO
    assert device_apart(None, saved) == "cpu"
    fields["cluster"] = {"devices": [{"name": "b", "device": "cuda:0"}]}
    assert device_apart(None, parse_plan(json.dumps(fields), "a plan")) == "cuda:0"


def test_they_may_compute_on_another_device() -> None:
    check_device(None, None)
    check_device("cuda:1", 2)
    for prefill in (None, AUTO):
        with pytest.raises(ConfigError, match="say how many ranks"):
            check_device("cuda", prefill)
    with pytest.raises(ConfigError, match="tpu"):
        check_device("tpu", 1)
    assert device_apart("cuda", None) == "cuda"
    assert device_apart(None, None) is None


def test_prompts_are_handed_over_as_blocks_as_they_are_kept() -> None:
    check_apart(EngineOptions("demo"))
    with pytest.raises(ConfigError, match="--no-prefix-cache"):
        check_apart(EngineOptions("demo", prefix_cache=False))
    with pytest.raises(ConfigError, match="--cp"):
        check_apart(EngineOptions("demo", context_parallel=2))
    check_apart(EngineOptions("demo", device="cuda"))
    check_apart(EngineOptions("demo", kv_cache="int8"))
    with pytest.raises(ConfigError, match="--kv-cache int8 is handed over between processors only"):
        check_apart(EngineOptions("demo", device="cuda", kv_cache="int8"))
