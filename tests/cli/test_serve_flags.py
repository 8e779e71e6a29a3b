"""What `ferrule serve` takes of its prefix cache, speculation, weights on disk, and of how long requests wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.agent.models.server import options_of
from ferrule.cli.main import app
from ferrule.cli.serving.options import prefix_disk_of, stream_weights_of
from ferrule.cluster.desired import DesiredModel
from ferrule.engine import EngineOptions
from ferrule.engine.speculation import GUESSED, Speculate, parse_speculation
from ferrule.errors import ConfigError


def test_the_disk_is_used_where_a_size_is_given() -> None:
    assert [prefix_disk_of(size) for size in (None, "off", "8GiB")] == [0, 0, 8 << 30]
    with pytest.raises(ConfigError, match="is not a size"):
        prefix_disk_of("much")
    with pytest.raises(ConfigError, match="--no-prefix-cache"):
        EngineOptions("demo", prefix_cache=False, prefix_disk=1)


def test_weights_are_streamed_where_the_user_says_so() -> None:
    assert [stream_weights_of(size) for size in (None, "off", "auto", "8GiB")] == [None, None, 0, 8 << 30]
    with pytest.raises(ConfigError, match="is not a size"):
        stream_weights_of("some")
    with pytest.raises(ConfigError, match="--stream-weights"):
        EngineOptions("demo", stream_weights=-1)


def test_the_most_tokens_that_are_guessed_may_be_said() -> None:
    assert [parse_speculation(text).most for text in ("off", "ngram", "ngram:3")] == [0, GUESSED, 3]
    ngrams, drafts = (
        ("ngram:", "ngram:0", "ngram:33", "ngram:x"),
        ("draft", "draft:3", "draft=", "draft=a:0", "mtp=a", "mtp:0"),
    )
    for text in ("", "on", "off:2", *ngrams, *drafts):
        with pytest.raises(ConfigError, match="none of off, ngram"):
            parse_speculation(text)
    with pytest.raises(ConfigError, match="from 1 to 32"):
        EngineOptions("demo", speculate="ngram:99")


def test_a_draft_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [parse_speculation(text) for text in ("mtp", "mtp:2")] == [Speculate("mtp", GUESSED), Speculate("mtp", 2)]
    assert parse_speculation("mtp:2").text == "mtp:2"
    assert parse_speculation("draft=owner/name") == Speculate("draft", GUESSED, "owner/name")
    (tmp_path / "small:er").mkdir()
    monkeypatch.chdir(tmp_path)
    found = parse_speculation("draft=small:er:5")
    assert found == Speculate("draft", 5, str(tmp_path / "small:er"))
    monkeypatch.chdir("/")
    assert parse_speculation(found.text) == found


def test_a_cluster_passes_speculation_on() -> None:
    desired = DesiredModel(model="demo", host="a" * 32, owner="a" * 32, speculate="ngram:4")
    assert options_of(desired, "demo").speculate == "ngram:4"
    assert options_of(replace(desired, speculate=None), "demo").speculate == "off"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--inter-token-limit", "1x"), "give more than 1x"),
        (("--max-queue-time", "0"), "give off for no limit"),
    ],
)
def test_limits_of_waiting_that_mean_nothing_are_refused_first(flags: tuple[str, str], said: str) -> None:
    refused = CliRunner().invoke(app, ["serve", "demo", "--here", *flags])
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.split())
