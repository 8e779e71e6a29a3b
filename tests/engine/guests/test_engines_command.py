"""`ferrule engines`, and what `ferrule serve --engine` takes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from ferrule.cli.main import app
from ferrule.cli.serving.engines import guest_for, members_of
from ferrule.engine import EngineOptions
from ferrule.engine.guests import choice
from ferrule.engine.guests.choice import ModelFacts
from ferrule.errors import ConfigError

PROGRAM = "#!/bin/sh\necho 'version: 7 (abc)'\n"


class Console:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def print(self, text: str, **_: object) -> None:
        self.lines.append(text)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing but a llama-server on its PATH."""
    program = tmp_path / "llama-server"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return program


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"}, catch_exceptions=False)
    return result.output


def test_engines_are_listed_with_where_they_are(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads(run("engines", "--model", "demo", "--json"))
    ours, theirs = told["engines"][:2]
    assert (ours["engine"], theirs) == (
        "ferrule",
        {"engine": "llama.cpp", "place": str(installed), "version": "7 (abc)", "install": None},
    )
    assert told["choice"] == {"engine": "ferrule", "why": "it runs this model"}
    assert "demo: ferrule: it runs this model" in run("engines", "--model", "demo")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "not installed: install llama.cpp" in run("engines")


def test_auto_says_why_it_takes_a_guest(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "facts_of", lambda model, deep: ModelFacts("gguf", "it has IQ1_S; get another"))
    console = Console()

    def taken(engine: str = "auto", given: dict[str, object] | None = None, demo: bool = False, **options: object):
        asked = EngineOptions("model.gguf", **options)
        found = guest_for(console, engine, asked, given or {}, demo=demo)
        return None if found is None else found.name

    assert taken() == "llama.cpp"
    assert console.lines == ["engine llama.cpp: the built-in engine does not run this GGUF file (it has IQ1_S)"]
    assert taken(pipeline=2) == "llama.cpp"
    assert taken(tensor=2) is None  # which llama.cpp has not
    assert taken(given={"--plan": "plan.json"}) is None
    assert taken(demo=True) is None
    assert taken("ferrule") is None
    assert taken("llama.cpp") == "llama.cpp"
    with pytest.raises(ConfigError, match=r"--replicas is for the built-in engine alone: leave it or --engine llama"):
        taken("llama.cpp", {"--plan": None, "--replicas": 2})
    monkeypatch.setenv("PATH", "/nowhere")
    assert taken() is None
    with pytest.raises(ConfigError, match=r"--engine llama\.cpp: its program is not on this machine"):
        taken("llama.cpp")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("demo", "other", "--engine", "llama.cpp"), "--engine llama.cpp is not for several models yet"),
        (("demo", "--engine", "lama"), "--engine 'lama' is not one of auto, ferrule, llama.cpp"),
    ],
)
def test_what_serve_refuses(words: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--here", *words], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert told in result.output.replace("\n", " ")


def test_who_listens_without_a_key_on_several_hosts_needs_the_users_word() -> None:
    with pytest.raises(ConfigError, match=r"vllm on several hosts listens .* without a key.*--trust-cables"):
        members_of(cast(Any, object()), "a,b", "vllm", trusted=False)
    assert members_of(None, None, "vllm", trusted=False) is None
