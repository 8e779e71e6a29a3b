"""``ferrule lab``: its words; that labs really come up is in tests/lab/test_control.py."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ferrule.cli.main import app
from ferrule.hardware import shipped
from ferrule.lab.netns import control
from ferrule.lab.netns.status import HostStatus, LabStatus

PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "160"}


def run(*words: str, runtime: Path | None = None) -> Result:
    env = PLAIN | ({"XDG_RUNTIME_DIR": str(runtime)} if runtime else {})
    return CliRunner().invoke(app, ["lab", *words], env=env)


def test_names_to_copy_are_whole_at_80_columns() -> None:
    told = CliRunner().invoke(app, ["lab", "profiles"], env=PLAIN | {"COLUMNS": "80"}).output
    known = shipped()
    for name in (*known.labs, *known.machines, *known.cables):
        assert re.search(rf"(?m)^{re.escape(name)} ", told), name
    for words in [machine.title.split() for machine in known.machines.values()]:
        assert all(word in told for word in words), words
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize(
    ("program", "said"), [("/usr/bin/ping", "-- ping -c 3 strix-2"), (None, "-- ferrule links show")]
)
def test_up_suggests_what_there_is(monkeypatch: pytest.MonkeyPatch, program: str | None, said: str) -> None:
    hosts = tuple(
        HostStatus(
            name=f"strix-{number}", path="", inode=0, cookie=0, machine="strix-halo", title="", memory=0,
            memory_bandwidth=0, flops={}, addresses={}, processes=0,
        )
        for number in (1, 2)
    )  # fmt: skip
    status = LabStatus("two-strix", "two-strix", "two", 1, "", 0, "", hosts, ())
    monkeypatch.setattr(control, "up", lambda lab, **_: status)
    monkeypatch.setattr(shutil, "which", lambda _: program)
    assert f"ferrule lab shell strix-1 {said}" in run("up", "two-strix").output


def test_profiles_are_listed_with_their_sources() -> None:
    told = run("profiles")
    assert told.exit_code == 0
    for word in ("two-strix", "strix-1 strix-2", "2 x usb4-40g", "273 ", "collapse=1.2", "10 Gb/s"):
        assert word in told.output
    known = json.loads(run("profiles", "--json").output)
    assert known["machines"]["strix-halo"]["memory_bandwidth"]["value"] == 256e9
    assert "AMD" in known["machines"]["strix-halo"]["memory_bandwidth"]["source"]
    assert known["cables"]["ethernet-10g"]["overhead"] == 24
    assert "802.3" in known["cables"]["ethernet-10g"]["sources"]["overhead"]
    assert len(known["labs"]["mac-four"]["cables"]) == 6


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("up", "three-strix"), 2, "there is no lab 'three-strix'; choose one of two-strix"),
        (("up", "two-strix", "--as", "a/b"), 2, "'a/b' cannot name a lab"),
        (("fault", "cable0", "stall"), 2, "no lab is up; start one, for example: ferrule lab up two-strix"),
        (("shell", "strix-1"), 2, "no lab is up"),
        (("shell", "strix-1", "--lab", "mine"), 2, "the lab 'mine' is not up; up are none"),
        (("down", "mine"), 2, "there is no lab 'mine' to end; there are none"),
        (("down", "--all"), 0, "no lab was up"),
        (("status",), 0, "no lab is up"),
        (("status", "--json"), 0, '"labs": []'),
    ],
)
def test_without_a_lab_every_command_says_what_to_do(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    told = run(*words, runtime=tmp_path)
    assert (told.exit_code, said in told.output.replace("\n", " ")) == (code, True), told.output


def test_faults_are_explained() -> None:
    told = run("fault", "--help").output
    assert "retrain-half" in told
    assert "cut --from strix-1" in told


def test_what_is_left_of_a_killed_lab_is_cleared_away(tmp_path: Path) -> None:
    lab = tmp_path / "ferrule" / "labs" / "two-strix"
    for folder in (tmp_path / "ferrule", lab.parent, lab):
        folder.mkdir(mode=0o700)
    (lab / "lock").touch()
    assert "cleared away what was left of two-strix" in run("status", runtime=tmp_path).output
    assert not lab.exists()
