"""What `ferrule serve --prefill-tp` does not go with: each is refused before anything loads, and named."""

from __future__ import annotations

import pytest

from ferrule.cli.serving.apart import refuse_apart
from ferrule.engine import EngineOptions
from ferrule.engine.apart.start import check_apart
from ferrule.errors import ConfigError

FLAGS = {"cluster": "--here", "plan": "--plan", "replicas": "--replicas", "cp": "--cp"}


@pytest.mark.parametrize(("given", "told"), FLAGS.items())
def test_ranks_for_prompts_are_of_one_machine_and_one_copy(given: str, told: str) -> None:
    others = dict.fromkeys(FLAGS, False)
    refuse_apart(2, **others)
    refuse_apart(None, **{**others, given: True})
    with pytest.raises(ConfigError, match=told):
        refuse_apart(2, **{**others, given: True})


def test_prompts_are_handed_over_as_blocks_between_processors() -> None:
    check_apart(EngineOptions("demo"))
    with pytest.raises(ConfigError, match="--no-prefix-cache"):
        check_apart(EngineOptions("demo", prefix_cache=False))
    with pytest.raises(ConfigError, match="--cp"):
        check_apart(EngineOptions("demo", context_parallel=2))
    with pytest.raises(ConfigError, match="--device cuda"):
        check_apart(EngineOptions("demo", device="cuda"))
