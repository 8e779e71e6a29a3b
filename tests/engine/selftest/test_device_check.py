"""`ferrule self check`: what is wrong with a device is seen, and a report comes back as a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugged import plug_in
from typer.testing import CliRunner

from ferrule.cli.selfcheck import app
from ferrule.engine.devices import open_device
from ferrule.engine.devices.emulated.device import EmulatedDevice
from ferrule.engine.devices.emulated.machine import Machine
from ferrule.engine.selftest import device_check
from ferrule.engine.selftest.device_check import check_device
from ferrule.engine.selftest.device_report import VERSION, Check, DeviceReport
from ferrule.engine.weights.device_matrix import DeviceMatrix
from ferrule.errors import ConfigError
from ferrule.files import read_record, write_record

REPORTS = sorted((Path(__file__).parent / "reports").glob("*.json"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A check that takes a second, of a fresh emulated accelerator."""
    monkeypatch.setattr(device_check, "_COPY_BYTES", 1 << 16)
    monkeypatch.setattr(device_check, "_WIDTH", 256)
    monkeypatch.setattr(device_check, "_ROUNDS", 1)
    monkeypatch.setattr(device_check, "_TURNS", 2)
    monkeypatch.setattr(device_check, "_ANSWER", 4)
    open_device("emulated", 1)
    return plug_in(Machine(0))


@pytest.mark.slow
def test_a_device_that_is_right(small: Machine) -> None:
    seen: list[Check] = []
    report = check_device("emulated", seen.append)
    assert report.ok, [check for check in report.checks if not check.ok]
    assert tuple(seen) == report.checks
    assert {
        "copies",
        "tokens",
        "products in bfloat16",
        "packed weights: Q4_K",
        "packed experts",
        "the embedded model, int4",
        "the embedded model, int8 cache",
        "the embedded model, int4 cache",
        "captured steps, int4",
    } <= {check.name for check in report.checks}
    steps = [check.detail for check in report.checks if check.name.startswith("captured")]
    assert steps == ["4 tokens, 1 launch in each step"] * 2
    assert report.title == "emulated:0"
    assert report.memory_bytes == small.memory
    assert small.used == 0, "all is given back"


@pytest.mark.slow
def test_wrong_products_are_seen_and_the_others_are_not_blamed(small: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: device_check._PACKED[name] for name in ("Q4_K", "NF4", "int8 by rows")}
    monkeypatch.setattr(device_check, "_PACKED", few)
    right = DeviceMatrix.multiply
    monkeypatch.setattr(DeviceMatrix, "multiply", lambda self, x: right(self, x) * 1.01)
    report = check_device("emulated")
    wrong = {check.name for check in report.checks if not check.ok}
    assert not report.ok
    assert all(name.startswith("packed weights") or name.endswith(("int8", "int4")) for name in wrong)
    assert len(wrong) == len(few) + 2


def test_a_device_that_is_lost_on_the_way_is_a_report(small: Machine) -> None:
    def lose(check: Check) -> None:
        if check.name == "copies":
            small.lose("fell off the bus")

    report = check_device("emulated", lose)
    assert [check.ok for check in report.checks] == [True] + [False] * (len(report.checks) - 1)
    assert "LostDevice: emulated:0: fell off the bus" in report.checks[-1].detail


@pytest.mark.parametrize("unified", [False, True])
def test_memory_is_used_in_place_where_the_host_sees_it(unified: bool) -> None:
    EmulatedDevice()  # so that torch knows it
    plug_in(Machine(0, unified=unified))
    check = device_check._in_place(EmulatedDevice())
    assert check.ok
    assert check.detail == (
        "used in place 200 times, 0 numbers wrong" if unified else "none that is used in place: tensors are copied"
    )


def test_what_is_no_device_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--device 'gpu' is not one of"):
        check_device("gpu")


@pytest.mark.parametrize("ok", [True, False])
def test_the_command_prints_and_saves_and_its_status_tells(
    ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = (
        Check("copies", True, "there and back", {"to_device_gb_s": 1.5}, "Triton"),
        Check("order", ok, "3 numbers wrong"),
    )
    report = DeviceReport(VERSION, "0.1", "2.13", "Linux", "cuda", "cuda:0 (A card)", 1 << 30, 1.0, checks)
    monkeypatch.setattr(device_check, "check_device", lambda name, on_check: report)
    file = tmp_path / "report.json"
    done = CliRunner().invoke(app, ["check", "--device", "cuda", "--save", str(file)])
    assert done.exit_code == (not ok)
    assert "cuda:0 (A card), torch 2.13, Linux" in done.output
    assert "to device 1.5 GB/s" in done.output
    assert "multiply by Triton" in done.output
    assert ("all is right" if ok else "1 of 2 are wrong") in done.output
    assert ok or "3 numbers wrong" in done.output
    assert read_record(file, DeviceReport) == report


def test_a_report_is_a_file_of_its_own_kind(tmp_path: Path) -> None:
    report = DeviceReport(VERSION, "0.1", "2.13", "Linux", "cpu", "cpu", 0, 0.0, ())
    write_record(tmp_path / "r.json", report)
    assert '"kind": "device-check"' in (tmp_path / "r.json").read_text()


@pytest.mark.parametrize("file", REPORTS, ids=lambda file: file.stem)
def test_reports_of_devices_that_were_tried(file: Path) -> None:
    """Sent by people who have the hardware."""
    report = read_record(file, DeviceReport)
    assert report.version == VERSION
    assert report.ok, [check for check in report.checks if not check.ok]
