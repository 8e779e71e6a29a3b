"""The settings file, and which value counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.main import app
from ferrule.config import SETTINGS, config_path, environment, fabric_settings, merge, parse_config, read_config
from ferrule.errors import ConfigError

FILE = """
[serve]
port = 9000
api_key = "s3same"
self_test = false

[fabric]
timeout = "5min"
interfaces = ["eth0", "^wlan0"]
rails = 2
"""


def test_a_file_stands_for_variables() -> None:
    assert parse_config(FILE, "config.toml") == {
        "FERRULE_PORT": "9000",
        "FERRULE_API_KEY": "s3same",
        "FERRULE_SELF_TEST": "0",
        "FERRULE_TIMEOUT": "5min",
        "FERRULE_INTERFACES": "eth0,^wlan0",
        "FERRULE_RAILS": "2",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[fabric]\n\ntimout = 3\n",
            "c.toml, line 3: there is no setting 'fabric.timout'; did you mean 'fabric.timeo",
        ),
        ("port = 3", "line 1: there is no setting 'port'; did you mean 'serve.port'"),
        ("serve.prt = 3", "line 1: there is no setting 'serve.prt'; did you mean 'serve.port'"),
        ("[serve]\nport = '3'", "line 2: serve.port must be a whole number, not '3'"),
        ("[serve]\nport = true", "line 2: serve.port must be a whole number, not True"),
        ("[serve]\nself_test = 1", "line 2: serve.self_test must be true or false, not 1"),
        ("[models]\npath = [3]", "line 2: models.path: 3 is no text"),
        ("[models]\npath = ['a:b']", "models.path: 'a:b' is no text without ':'"),
        ("[serve\n", "c.toml: "),
    ],
)
def test_a_mistake_names_file_line_key_and_cure(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "c.toml")
    assert told in str(caught.value)


def test_the_environment_is_above_the_file_and_the_file_above_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    environ = {"FERRULE_CONFIG": str(path), "FERRULE_TIMEOUT": "7", "FERRULE_RAILS": "", "OTHER": "1"}
    found = environment(environ)
    assert (found["FERRULE_TIMEOUT"], found["FERRULE_RAILS"], found["OTHER"]) == ("7", "2", "1")
    settings = fabric_settings(found)
    assert (settings.timeout, settings.rails, settings.interfaces) == (7.0, 2, ("eth0", "^wlan0"))
    sources = {each.setting.key: each.source for each in merge(read_config(environ), environ)}
    assert [sources[key] for key in ("fabric.timeout", "fabric.rails", "fabric.heartbeat")] == [
        "environment",
        "file",
        "default",
    ]


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    assert read_config({"FERRULE_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}) is not None
    with pytest.raises(ConfigError, match="FERRULE_CONFIG: there is no file"):
        read_config({"FERRULE_CONFIG": str(tmp_path / "gone.toml")})


def test_the_file_is_where_the_platform_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path({}).parts[-2:] == ("ferrule", "config.toml")


def run(*words: str, path: Path, **env: str) -> tuple[int, str]:
    cleared = {each.variable: "" for each in SETTINGS}
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "80", "FERRULE_CONFIG": str(path), **cleared, **env})
    return result.exit_code, result.output


def test_config_show_tells_values_and_sources(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    code, told = run("config", "show", "--json", path=path, FERRULE_PORT="9001")
    found = json.loads(told)
    assert (code, found["path"]) == (0, str(path))
    assert found["settings"]["serve.port"] == {"value": "9001", "source": "environment", "variable": "FERRULE_PORT"}
    assert found["settings"]["fabric.rails"]["source"] == "file"
    assert found["settings"]["fabric.heartbeat"] == {
        "value": "0.8 s",
        "source": "default",
        "variable": "FERRULE_HEARTBEAT",
    }
    code, table = run("config", "show", path=path)
    assert code == 0
    assert "s3same" not in told + table
    for setting in SETTINGS:
        assert setting.key in table
        assert setting.variable in table


def test_config_path_works_with_a_broken_file_and_commands_tell(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[serve]\nprt = 1\n")
    assert run("config", "path", path=path) == (0, f"{path}\n")
    for words in (("config", "show"), ("chat", "--help")):
        code, told = run(*words, path=path)
        assert code == 2
        assert "line 2: there is no setting 'serve.prt'; did you mean 'serve.port'?" in told.replace("\n", " ")


def test_flags_are_above_the_environment_above_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[serve]\nport = 1\n")  # nothing listens there
    for words, env, port in (
        (("chat", "--once", "hi"), {}, ":1"),
        (("chat", "--once", "hi"), {"FERRULE_PORT": "2"}, ":2"),
        (("chat", "--once", "hi", "--port", "3"), {"FERRULE_PORT": "2"}, ":3"),
    ):
        code, told = run(*words, path=path, **env)
        assert code == 6
        assert f"127.0.0.1{port}" in told


def test_the_manual_has_every_setting() -> None:
    manual = (Path(__file__).parents[1] / "docs" / "config.md").read_text()
    for each in SETTINGS:
        assert f"| `{each.key}` | `{each.variable}` | {each.default} | {each.help} |" in manual
