"""``ferrule connect``: prints, writes, undoes, and asks one real request, over a scripted engine."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_engine import FakeEngine
from running import running, served
from typer.testing import CliRunner

from ferrule.cli.connect import jsonc
from ferrule.cli.main import app
from ferrule.serve.app import create_app

KEY = "sesame-open-0123456789"
MODEL = "acme/fake-1b"
FILES = {
    "claude-code": (".claude/settings.json", b'{\n  "permissions": {"allow": ["Bash(ls)"]},\n  "env": {"A": "1"}\n}\n'),
    "codex": (".codex/config.toml", b'# mine\nmodel = "gpt-9"\n\n[tui]\nnotifications = true'),
    "opencode": (".config/opencode/opencode.jsonc", b'{\n  // mine\n  "theme": "x",\n}\n'),
    "aider": (".aider.conf.yml", b"# mine\nmodel: gpt-9\ndark-mode: true\n"),
    "continue": (".continue/config.yaml", b"name: Mine\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: A # mine\n"),
    "zed": (".config/zed/settings.json", b'// mine\n{\n  "theme": "One",\n  "language_models": {"ollama": {}}\n}'),
}
READ: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".yml": yaml.safe_load, ".yaml": yaml.safe_load}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(create_app(FakeEngine("Hello there."), api_key=KEY)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """The command in a home of its own: exit code, and all that it says."""
    env = {"HOME": str(tmp_path), "FERRULE_STATE": str(tmp_path / "state"), "NO_COLOR": "1", "TERM": "dumb"}
    none = ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG", "CONTINUE_GLOBAL_DIR")

    def call(*words: str, said: str = "", key: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(
            app, ["connect", *words], input=said, env={**env, **dict.fromkeys(none), "FERRULE_API_KEY": key}
        )
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    return call


def told(place: Path) -> Any:
    return read(place, place.read_bytes())


def read(place: Path, content: bytes) -> Any:
    return READ.get(place.suffix, jsonc.read)(content.decode())


@pytest.mark.parametrize("name", FILES)
def test_settings_are_written_and_restored_to_the_byte(name: str, url: str, run: Any, tmp_path: Path) -> None:
    where, before = FILES[name]
    place = tmp_path / where
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(before)
    place.chmod(0o640)
    code, said = run(name, "--url", url, "--write", "--yes", key=KEY)
    assert code == 0, said
    assert "it answered 'Hello there.'" in said
    assert KEY not in said
    assert f"+++ {place}" in said
    assert ("needs in the environment, too" in said) == (KEY not in place.read_text())
    assert b"mine" not in before or b"mine" in place.read_bytes()
    assert told(place).keys() >= read(place, before).keys()
    assert url in place.read_text()
    assert MODEL in place.read_text()
    private = place.stat().st_mode & 0o777 == 0o600
    assert private == (KEY in place.read_text())
    again = place.read_bytes()
    assert "has it already" in run(name, "--url", url, "--write", "--yes", key=KEY)[1]
    assert place.read_bytes() == again
    # Another model, and back: what was there before the first time is restored.
    assert run(name, "--url", url, "--model", "fake-1b", "--write", "--yes", key=KEY)[0] == 0
    assert place.read_bytes() != again
    assert private == (place.stat().st_mode & 0o777 == 0o600)
    code, said = run(name, "--undo", "--yes")
    assert (code, place.read_bytes(), place.stat().st_mode & 0o777) == (0, before, 0o640), said
    assert KEY not in said
    assert run(name, "--undo", "--yes")[0] == 2
    assert not list(place.parent.glob(".*.ferrule"))


@pytest.mark.parametrize("name", FILES)
def test_new_settings_are_private_and_undo_leaves_nothing(name: str, run: Any, tmp_path: Path, url: str) -> None:
    assert run(name, "--url", url, "--write", "--yes", key=KEY)[0] == 0
    made = [each for each in tmp_path.rglob("*") if each.is_file() and "state" not in each.parts]
    assert [each.stat().st_mode & 0o777 for each in made] == [0o600]
    assert told(made[0])
    assert (tmp_path / "state/connect").stat().st_mode & 0o777 == 0o700
    assert run(name, "--undo", "--yes")[0] == 0
    assert [each for each in tmp_path.iterdir() if each.name != "state"] == []


def test_what_each_file_says(url: str, run: Any, tmp_path: Path) -> None:
    for name in FILES:
        assert run(name, "--url", url, "--write", "--yes", key=KEY)[0] == 0
    home = {name: told(tmp_path / where.replace("jsonc", "json")) for name, (where, _) in FILES.items()}
    env = home["claude-code"]["env"]
    assert (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_MODEL"]) == (url, KEY, MODEL)
    assert (env["ANTHROPIC_DEFAULT_HAIKU_MODEL"], env["CLAUDE_CODE_ATTRIBUTION_HEADER"]) == (MODEL, "0")
    assert env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "512"
    assert home["codex"] == {
        "model": MODEL,
        "model_provider": "ferrule",
        "model_context_window": 512,
        "model_providers": {
            "ferrule": {
                "name": "Ferrule",
                "base_url": f"{url}/v1",
                "wire_api": "responses",
                "env_key": "FERRULE_API_KEY",
            }
        },
    }
    provider = home["opencode"]["provider"]["ferrule"]
    assert provider["options"] == {"baseURL": f"{url}/v1", "apiKey": "{env:FERRULE_API_KEY}"}
    assert provider["models"][MODEL]["limit"]["context"] == 512
    assert home["aider"] == {"model": f"openai/{MODEL}", "openai-api-base": f"{url}/v1"}
    (item,) = home["continue"]["models"]
    assert (item["apiBase"], item["apiKey"], item["provider"], item["model"]) == (f"{url}/v1", KEY, "openai", MODEL)
    zed = home["zed"]["language_models"]["openai_compatible"]["ferrule"]
    assert (zed["api_url"], zed["available_models"][0]["max_tokens"]) == (f"{url}/v1", 512)


@pytest.mark.parametrize("name", [*FILES, "open-webui"])
def test_without_write_it_prints_and_changes_nothing(name: str, url: str, run: Any, tmp_path: Path) -> None:
    code, said = run(name, "--url", url, "--key", KEY)
    assert code == 0, said
    assert url in said
    assert KEY not in said
    assert "it answered 'Hello there.'" in said
    assert list(tmp_path.iterdir()) == []


def test_a_no_changes_nothing(url: str, run: Any, tmp_path: Path) -> None:
    code, said = run("zed", "--url", url, "--write", key=KEY, said="n\n")
    assert (code, "Write " in said) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_change_by_others_is_told_and_kept_when_written_again(url: str, run: Any, tmp_path: Path) -> None:
    place = tmp_path / ".aider.conf.yml"
    assert run("aider", "--url", url, "--write", "--yes", key=KEY)[0] == 0
    mine = place.read_text() + "dark-mode: true\n"
    place.write_text(mine)
    code, said = run("aider", "--undo", "--yes")
    assert (code, "which would be lost" in said, place.read_text()) == (2, True, mine)
    code, said = run("aider", "--undo", said="n\n")
    assert (code, "was changed after it was written" in said, place.read_text()) == (1, True, mine)
    assert run("aider", "--url", url, "--model", "fake-1b", "--write", "--yes", key=KEY)[0] == 0
    assert run("aider", "--undo", "--yes")[0] == 0
    assert place.read_text() == mine


def test_a_link_to_a_file_stays_one(url: str, run: Any, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles"
    real.write_text("dark-mode: true\n")
    (tmp_path / ".aider.conf.yml").symlink_to(real)
    assert run("aider", "--url", url, "--write", "--yes", key=KEY)[0] == 0
    assert (tmp_path / ".aider.conf.yml").is_symlink()
    assert "openai-api-base" in real.read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("vim",), 2, "'vim' is no client that is known here: claude-code"),
        (("open-webui", "--write"), 2, "has no settings file"),
        (("zed", "--undo"), 2, "nothing was written for zed"),
        (("zed", "--url", "http://127.0.0.1:9"), 6, "no server answers at http://127.0.0.1:9/v1"),
        (("zed", "--model", "gpt-9", "--key", KEY), 2, "'gpt-9' is not served here"),
        (("claude-code", "--model", "gpt-9", "--key", KEY), 2, "'gpt-9' is not served here"),
        (("zed",), 2, "the server refuses the API key"),
    ],
)
def test_what_goes_wrong_is_told(words: tuple[str, ...], code: int, message: str, url: str, run: Any) -> None:
    given = words if "--url" in words else (*words, "--url", url)
    done, said = run(*given)
    assert done == code, said
    assert message in " ".join(said.split())


def test_without_a_key_clients_get_a_word_in_its_place(run: Any, tmp_path: Path) -> None:
    """And of a model that sees, clients that would not send images are told so."""
    with running(FakeEngine("Hi.", image_marker="<|user|>")) as url:
        for name in ("claude-code", "aider", "opencode", "continue", "zed"):
            assert run(name, "--url", url, "--write", "--yes")[0] == 0
    env = json.loads((tmp_path / ".claude/settings.json").read_text())["env"]
    assert env["ANTHROPIC_AUTH_TOKEN"] == "none"
    assert yaml.safe_load((tmp_path / ".aider.conf.yml").read_text())["openai-api-key"] == "none"
    opencode = told(tmp_path / ".config/opencode/opencode.json")["provider"]["ferrule"]["models"][MODEL]
    assert opencode["modalities"]["input"] == ["text", "image"]
    assert told(tmp_path / ".continue/config.yaml")["models"][0]["capabilities"] == ["image_input"]
    zed = told(tmp_path / ".config/zed/settings.json")["language_models"]["openai_compatible"]["ferrule"]
    assert zed["available_models"][0]["capabilities"]["images"] is True
