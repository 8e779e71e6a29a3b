"""``ferrule doctor``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.main import app
from ferrule.lab import Lab, chain

TREES = Path(__file__).parents[1] / "links" / "trees"
PLAIN = {"NO_COLOR": "1", "TERM": "dumb"}


def run(*words: str, width: int = 100) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *words], env={**PLAIN, "COLUMNS": str(width)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def tree(name: str) -> tuple[str, str]:
    return "--tree", str(TREES / f"{name}.json")


@pytest.mark.parametrize(
    ("name", "code"), [("mac-studio-3", 0), ("pc-2.5gbe", 0), ("strix-halo-a", 1), ("connectx3-m2", 2)]
)
def test_the_exit_code_tells_the_worst(name: str, code: int) -> None:
    assert run(*tree(name))[0] == code


def test_a_machine_that_is_well() -> None:
    told = run(*tree("mac-studio-3"))[1]
    assert told.splitlines()[-1] == "all is well"
    assert "looked at 3 USB4 or Thunderbolt cables, 8 interfaces, 6 RDMA ports, no PCIe adapters" in told


def test_a_finding_has_evidence_reason_and_cure() -> None:
    told = run(*tree("connectx3-m2"))[1]
    lines = [line.strip() for line in told.splitlines()]
    assert "error  ibp1s0:1  rdma-no-subnet-manager" in lines
    assert "read /sys/class/infiniband/ibp1s0/ports/1/state: 2: INIT" in lines
    assert any(line.startswith("why  RDMA does not work at all") for line in lines)
    assert "sudo apt install opensm" in lines
    assert not any("dnf" in line for line in lines)


def test_two_ends_of_a_cable_are_told_once_and_hosts_are_named() -> None:
    told = run(*tree("strix-halo-a"), *tree("strix-halo-b"))[1]
    assert told.count("cable-asymmetric") == 1
    assert "warning  strix-b: thunderbolt1  mtu-small" in told


@pytest.mark.parametrize("path", sorted(TREES.glob("*.json")), ids=lambda path: path.stem)
def test_only_commands_are_wider_than_the_terminal(path: Path) -> None:
    told = run("--tree", str(path), width=80)[1]
    wide = [line for line in told.splitlines() if len(line.rstrip()) > 80]
    assert all(line.startswith("       ") for line in wide)


def test_json(tmp_path: Path) -> None:
    code, told = run(*tree("dgx-spark"), "--json")
    found = json.loads(told)
    assert (code, found["schema"], found["worst"], found["unreached"]) == (1, 1, "warning", [])
    assert found["hosts"][0]["name"] == "spark-1"


def test_wrong_flags_are_no_finding() -> None:
    assert run("--nonsense")[0] == 3
    assert run("--timeout", "soon", *tree("mac-studio-3"))[0] == 3
    assert run("--help")[0] == 0


def test_a_file_that_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    code, told = run("--tree", str(path))
    assert code == 8
    assert "is no record" in told


def fake_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program called ssh that answers for any host; ``$host`` is the one asked for."""
    program = folder / "ssh"
    program.write_text(
        f'#!/bin/sh\nfor word; do last=$word; done\nwhile [ "$1" != -- ]; do shift; done\nhost=$2\n{script}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_other_hosts_are_read_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(
        tmp_path,
        monkeypatch,
        f'echo "$host: $last" >> {tmp_path}/asked; echo Welcome; tr -d "\\n" < {TREES}/$host.json | sed "s/^{{ */{{/"',
    )
    code, told = run("--host", "strix-halo-a", "--host", "strix-halo-b", "--remote-command", "~/bin/ferrule")
    assert code == 1
    assert "strix-a domain1 usb4_port2 ↔ strix-b domain1 usb4_port2" in told
    asked = sorted((tmp_path / "asked").read_text().splitlines())
    assert asked == [f"strix-halo-{one}: ~/bin/ferrule links record --plain -" for one in "ab"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo Permission denied >&2; exit 255", "ssh cannot log in to far: Permission denied"),
        ("exit 127", "there is no `ferrule` on far; install Ferrule there"),
        ("echo No such option >&2; exit 2", "failed on far: No such option; it must be of the same version"),
        ("echo hello", "what far printed is no record"),
        ("exec sleep 60", "far did not answer within 0.2 s"),
    ],
)
def test_a_host_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str) -> None:
    fake_ssh(tmp_path, monkeypatch, script)
    timeout = "0.2s" if "sleep" in script else "30s"
    code, told = run("--host", "far", *tree("mac-studio-3"), "--timeout", timeout)
    assert code == 8
    assert why in told
    assert "all is well" in told


def test_a_host_is_no_option_of_ssh() -> None:
    code, told = run("--host=-oProxyCommand=x")
    assert code == 8
    assert "is no host" in told


def test_this_machine() -> None:
    code, told = run("--json")
    found = json.loads(told)
    assert code in (0, 1, 2)
    assert [one["source"] for one in found["hosts"]] == ["live"]


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_a_cable_of_a_lab_that_is_cut_is_named() -> None:
    with Lab(chain(3)) as lab:
        lab.cables[0].cut()
        words = [sys.executable, "-m", "ferrule.cli.main", "doctor", "--json"]
        process = lab.popen(1, words, stdout=subprocess.PIPE, text=True)
        told, _ = process.communicate(timeout=60)
    cut = [one["subject"] for one in json.loads(told)["findings"] if one["id"] == "no-carrier"]
    assert cut == ["cable0"]
    assert process.returncode == 1
