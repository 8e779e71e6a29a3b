"""Helps, versions, errors and exit codes of the command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ferrule._native
import ferrule.engine.host.processes
from ferrule import __version__
from ferrule.cli.display import base_url, curl
from ferrule.cli.main import COMMANDS, app, load
from ferrule.cli.version import built_by, rdma
from ferrule.installation import pip_install
from ferrule.mlx_backend import LIBRARY, library

PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "FERRULE_API_KEY": "", "FERRULE_PORT": ""}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words), env={**PLAIN, **(env or {})})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, ANSI.sub("", result.output)


def test_help_lists_the_commands_with_one_line_each() -> None:
    code, told = run("--help")
    assert code == 0
    for line in (
        "Serve a model over the OpenAI API.",
        "Load a model, print its answer to one prompt, and exit.",
        "Talk to a server of the OpenAI API.",
        "Print the versions that matter in a bug report.",
        "Find the cables of this machine, and save what it says about them.",
        "ferrule serve --demo",
    ):
        assert line in told


@pytest.mark.parametrize("command", ["serve", "generate", "chat", "version"])
def test_every_command_has_examples(command: str) -> None:
    code, told = run(command, "--help")
    assert code == 0
    assert "Examples:" in told
    assert told.count(f"ferrule {command}") >= 2


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (("--help",), "numpy torch httpx psutil asyncio ferrule.fabric"),
        (("version",), "numpy torch httpx asyncio ferrule.fabric"),
        (("doctor", "--help"), "numpy torch httpx asyncio ferrule.fabric"),
        (("lab", "profiles"), "numpy torch httpx asyncio ferrule.fabric"),
        (("launch", "--help"), "numpy torch httpx asyncio ferrule.fabric"),
        (("chat", "--help"), "numpy torch httpx asyncio ferrule.fabric"),
        (("generate", "--help"), "numpy torch httpx asyncio ferrule.fabric"),
        (("links", "show"), "torch httpx fastapi"),
    ],
)
def test_a_command_imports_what_it_needs_and_no_more(words: tuple[str, ...], heavy: str) -> None:
    imported(heavy, words)


def test_no_help_imports_what_is_heavy() -> None:
    imported("torch transformers scipy httpx fastapi", *((name, "--help") for name in COMMANDS))


def imported(heavy: str, *commands: tuple[str, ...]) -> None:
    """Run ``commands`` in a new process, and fail if anything ``heavy`` was imported."""
    program = (
        "import sys; from ferrule.cli.main import app\n"
        f"for words in {commands!r}:\n"
        "    try: app(words)\n"
        "    except SystemExit as end: assert end.code == 0\n"
        f"    found = set({heavy.split()!r}) & set(sys.modules)\n"
        "    assert not found, (words, found)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("lab up two-", "two-strix"),
        ("lab vm run two-", "two-strix"),
        ("serve de", "demo"),
        ("generate de", "demo"),
        ("connect cla", "claude-code"),
        ("plan llama-3", "llama-3.3-70b"),
        ("ver", "version"),
        ("lab vm reboot two-strix strix-", "strix-2"),
        ("launch --hosts a,strix-", "a,strix-7"),
        ("links probe strix-", "strix-7"),
    ],
)
def test_the_shell_is_offered_names(words: str, offered: str, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host strix-7 *.example\n  User me\n")
    for folder in ("run", "run/ferrule", "run/ferrule/labs"):
        (tmp_path / folder).mkdir(mode=0o700)
    (tmp_path / "run/ferrule/labs/.lock").touch()  # labs that were up leave it there
    env = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    env |= {
        "_FERRULE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"ferrule {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    told = subprocess.run(
        [sys.executable, "-m", "ferrule"], env=env, check=True, capture_output=True, text=True, timeout=60
    )
    assert offered in told.stdout.split()


def test_completion_is_an_option_of_the_command_line_alone() -> None:
    assert "--install-completion" in run("--help")[1]
    for words in (("serve", "--help"), ("links", "--help")):
        assert "completion" not in run(*words)[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_says_of_each_command_what_its_own_help_says(name: str) -> None:
    told = load(name).help.partition("\n\n")[0].replace("\n", " ")
    assert told.strip() == COMMANDS[name][1]


def test_version() -> None:
    assert run("--version") == (0, f"ferrule {__version__}\n")
    code, told = run("version")
    assert code == 0
    found = json.loads(run("version", "--json")[1])
    for name in ("ferrule", "python", "kernel", "cpu", "memory", "torch", "transformers", "numpy", "fastapi"):
        assert name in found
        assert re.search(rf"^{name} ", told, re.MULTILINE)
    assert found["ferrule"] == __version__
    assert found["cpus"] >= 1
    assert found["memory_bytes"] > 2**28


def test_version_says_whether_rdma_is_there_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def without() -> list[dict[str, str]]:
        raise OSError("this Ferrule was built without RDMA; install libibverbs-dev")

    assert rdma()
    monkeypatch.setattr(ferrule._native, "verbs_ports", without)
    assert rdma() == "none: this Ferrule was built without RDMA; install libibverbs-dev"
    monkeypatch.setattr(ferrule._native, "verbs_ports", lambda: [{"device": "rxe0"}, {"device": "rxe0"}])
    assert rdma() == "rxe0"


def test_the_compiler_is_read_from_the_native_module() -> None:
    assert built_by(b"\x7fELF...\0GCC: (Debian 14.2.0-19) 14.2.0\0.text") == "GCC: (Debian 14.2.0-19) 14.2.0"
    assert built_by(b"\x7fELF") is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("serve",), "no model is given"),
        (("serve", "some/model", "--demo"), "serve one of them"),
        (("serve", "--demo", "--api-key", " "), "API key is empty"),
        (("serve", "--demo", "--host", "0.0.0.0"), "FERRULE_API_KEY"),
        (("serve", "--demo", "--host", "0.0.0.0", "--api-key", "k"), "in the clear"),
        (("serve", "--demo", "--ssl-keyfile", "key.pem"), "needs the certificate"),
        (("serve", "--demo", "--ssl-certfile", "/none/cert.pem"), "cannot be read"),
        (("serve", "--demo", "--host", "no.such.host.invalid"), "is not known"),
        (
            ("serve", "--demo", "--host", "192.0.2.1", "--api-key", "k", "--plain-http"),
            "is not an address of this machine",
        ),
        (("chat", "ftp://there"), "not an HTTP address"),
        (("generate", "demo", ""), "prompt is empty"),
    ],
)
def test_wrong_words_are_explained_and_exit_with_2(words: tuple[str, ...], told: str) -> None:
    code, output = run(*words)
    assert code == 2
    assert output.startswith("error: ")
    assert told in output
    assert "Traceback" not in output


def test_a_taken_port_is_noticed_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ferrule.engine.host.processes, "start_ranks", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = run("serve", "/no/such/model", env={"FERRULE_PORT": str(port)})
    assert code == 2
    assert f"port {port} is in use on 127.0.0.1; choose another with --port" in output


def test_a_plan_for_other_hosts_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ferrule.engine.host.processes, "start_ranks", None)
    file = tmp_path / "plan.json"
    file.write_text(run("plan", "demo", "--profile", "two-strix", "--json")[1])
    code, output = run("serve", "--demo", "--port", "0", "--plan", str(file))
    assert code == 4
    assert "the plan places ranks on" in output


def test_a_missing_model_is_a_model_error(tmp_path: Path) -> None:
    """Said at once, also on a machine that has not been measured yet."""
    code, output = run("serve", "/no/such/model", "--port", "0", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert (code, output.startswith("error: ")) == (3, True)
    assert "/no/such/model" in output


@pytest.mark.parametrize("how", [("--debug",), ()])
def test_debug_adds_the_traceback(how: tuple[str, ...]) -> None:
    code, output = run(*how, "serve", env={} if how else {"FERRULE_DEBUG": "1"})
    assert code == 2
    assert "Traceback" in output
    assert "error: no model is given" in output


def test_no_server_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    code, output = run("chat", f"http://127.0.0.1:{port}", "--once", "hi")
    assert code == 6
    assert "is `ferrule serve` running there?" in output


@pytest.mark.parametrize("package", ["torch", "uvicorn"])
def test_a_missing_extra_is_named_before_anything_starts(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ferrule.engine.host.processes, "expecting")
    monkeypatch.setitem(sys.modules, package, None)
    for words in (("serve", "--demo", "--port", "0"), ("generate", "demo", "hi")):
        code, output = run(*words)
        assert code == 2
        assert f"ferrule {words[0]} needs the serve extra ({package} is not installed): " in output
        assert pip_install("serve") in output


def test_the_curl_line_is_for_a_shell() -> None:
    line = curl("http://127.0.0.1:8420", "it's", "chat/completions", with_key=True)
    assert line.startswith("curl http://127.0.0.1:8420/v1/chat/completions -H ")
    assert '-H "Authorization: Bearer $FERRULE_API_KEY"' in line
    assert "Bearer" not in curl("http://x", "m", "completions", with_key=False)
    assert "/v1/completions" in curl("http://x", "m", "completions", with_key=False)
    assert base_url("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert base_url("::1", 1) == "http://[::1]:1"


def test_mlx_is_told_where_ferrule_is() -> None:
    assert run("env", "mlx") == (0, f"export {LIBRARY}={shlex.quote(library())}\n")


@pytest.mark.parametrize(("flag", "value"), [("--encrypt", "1"), ("--no-encrypt", "0")])
def test_encryption_is_a_variable_of_every_rank(flag: str, value: str) -> None:
    from ferrule.engine.host.processes import rank_environment

    told = run("launch", "-n", "2", flag, "--dry-run", "train.py")[1]
    assert told.count(f"FERRULE_ENCRYPT={value}") == 2
    assert rank_environment(1, flag == "--encrypt")["FERRULE_ENCRYPT"] == value
    assert "FERRULE_ENCRYPT" not in rank_environment(1, None)
