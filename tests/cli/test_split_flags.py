"""What `ferrule serve` takes of a split: shares and whole experts."""

from __future__ import annotations

import pytest

from ferrule.agent.models.server import options_of
from ferrule.cli.serving.options import saved_plan, tensor_of
from ferrule.cluster.desired import DesiredModel
from ferrule.engine import EngineOptions
from ferrule.engine.options import parse_shares
from ferrule.errors import ConfigError
from ferrule.model import read_model


def test_shares_say_how_many_ranks_there_are() -> None:
    assert tensor_of(None, "4,2,1", expert_parallel=False) == (3, (4.0, 2.0, 1.0))
    assert tensor_of(2, None, expert_parallel=True) == (2, ())
    for wrong in ("4,-1", "4,", "much", "1,inf"):
        with pytest.raises(
            ConfigError, match="is no list of numbers above 0, one for each rank of --tp, such as 4,2,1"
        ):
            parse_shares(wrong)
    with pytest.raises(ConfigError, match="--shares has 3 numbers, and --tp 2 needs one for each rank"):
        EngineOptions("demo", 2, shares=(4.0, 2.0, 1.0))
    with pytest.raises(ConfigError, match="say how many, such as --tp 2"):
        tensor_of(None, None, expert_parallel=True)
    with pytest.raises(ConfigError, match="of which there must be 2 or more"):
        EngineOptions("demo", expert_parallel=True)
    with pytest.raises(ConfigError, match="--expert-exchange gives experts to the ranks of --tp"):
        EngineOptions("demo", expert_exchange=True)


def test_what_was_asked_for_is_planned_also_of_a_record() -> None:
    desired = DesiredModel(model="m", host="a" * 32, owner="a" * 32, tensor=3, shares=(4.0, 2.0, 1.0))
    model = read_model("llama-3.2-3b")
    (stage,) = options_of(desired, "m").plan(model).stages
    assert [round(share.key_value * model.key_value_heads) for share in stage.shares] == [5, 2, 1]
    whole = options_of(DesiredModel(model="m", host="a" * 32, owner="a" * 32, tensor=3, expert_parallel=True), "m")
    assert whole.plan(read_model("qwen3-30b-a3b")).strategy == "expert"
    desired = DesiredModel(model="m", host="a" * 32, owner="a" * 32, tensor=3, expert_exchange=True)
    (stage,) = options_of(desired, "m").plan(read_model("qwen3-30b-a3b")).stages
    assert (stage.experts, stage.exchange) == (True, True)
    long = options_of(DesiredModel(model="m", host="a" * 32, owner="a" * 32, context_parallel=4), "m")
    assert (long.ranks, long.plan(model).context, long.plan(model).strategy) == (4, 4, "context")


def test_a_plan_says_more_than_shares(tmp_path) -> None:
    with pytest.raises(ConfigError, match="leave --tp, --pp, --cp, --shares, --expert-parallel and"):
        saved_plan(tmp_path / "plan.json", None, None, None, expert_parallel=True)
    with pytest.raises(ConfigError, match="says how to split"):
        saved_plan(tmp_path / "plan.json", None, None, None, expert_parallel=False, cp=2)
