"""``ferrule keys``: made, listed and revoked from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli_words import run
from typer.testing import CliRunner

from ferrule.cli.main import app


def test_keys_are_made_shown_once_and_revoked(tmp_path: Path) -> None:
    env = {"FERRULE_KEYS_FILE": str(tmp_path / "state" / "keys.json")}
    assert run("keys", "list", env=env) == (0, "there is no key; ferrule keys create NAME\n")
    limits = ("--models", "a, b", "--requests-per-minute", "60", "--tokens-per-minute", "9000", "--concurrent", "2")
    made = CliRunner().invoke(app, ["keys", "create", "laptop", *limits, "--expires", "30d"], env=env)
    key = made.stdout.strip()
    assert (made.exit_code, len(key), key[:3]) == (0, 46, "fr-")
    code, told = run("keys", "create", "other", "--json", env=env)
    assert (code, json.loads(told)["models"]) == (0, None)
    _, table = run("keys", "list", env=env)
    assert key[:8] in table
    assert key not in table
    for shown in ("laptop", "a, b", "60", "9000", "2", "never"):
        assert shown in table
    listed = json.loads(run("keys", "list", "--json", env=env)[1])
    assert [each["name"] for each in listed] == ["laptop", "other"]
    assert "digest" not in listed[0]
    assert listed[0]["models"] == ["a", "b"]
    assert run("keys", "revoke", "laptop", env=env) == (0, "laptop is revoked\n")
    assert run("keys", "revoke", "other", env=env)[0] == 0
    assert "are revoked" in run("keys", "list", env=env)[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("create", "two words"), "cannot be used: up to 64 letters"),
        (("create", "api-key"), "is that of --api-key"),
        (("create", "a", "--models", " ,"), "--models names no model"),
        (("create", "a", "--expires", "2001-01-01"), "that is over"),
        (("create", "a", "--expires", "soon"), "write for example 30d"),
        (("revoke", "a"), "there is no key 'a'"),
    ],
)
def test_what_cannot_be_done_is_told(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    code, said = run("keys", *words, env={"FERRULE_KEYS_FILE": str(tmp_path / "keys.json")})
    assert code == 2
    assert told in " ".join(said.split())
