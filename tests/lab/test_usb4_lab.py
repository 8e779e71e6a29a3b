"""The process that emulates USB4 controllers: started, asked, and gone with the process that has it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner
from usb4_driver import Driver

from ferrule.cli.main import app
from ferrule.errors import ConfigError, LabError
from ferrule.lab.usb4 import Fault, FaultKind, Usb4Cable, Usb4Host, Usb4Lab
from ferrule.lab.usb4.messages import ControllerState
from ferrule.lab.usb4.packets import Space

HOSTS = (Usb4Host("a", hops=3), Usb4Host("b", controllers=2))


def test_a_lab_from_start_to_end(tmp_path: Path) -> None:
    cables = [Usb4Cable("cable0", ("a", 0), ("b", 3), gbps=10)]
    trace = tmp_path / "cable.pcapng"
    with Usb4Lab(HOSTS, cables, training=0.01, trace=trace) as lab:
        assert [path.name for path in lab.sockets("b")] == ["b-0.sock", "b-1.sock"]
        drivers = [Driver.connect(lab.sockets("a")[0]), Driver.connect(lab.sockets("b")[1])]
        for driver in drivers:
            driver.start()
            driver.config_write(Space.ROUTER, 0, 3, 1 << 31)
        lab.wait_link("cable0", "up", 20)
        assert drivers[0].read(0x39640) == 3
        lab.fault("cable0", Fault(FaultKind.HALF_LANE))
        lab.reshape("cable0", rate=1e9, delay_us=10)
        said = lab.state()
        assert said.cables["cable0"].faults == ("half-lane",)
        assert said.hosts["b"] == [ControllerState(False, False), ControllerState(True, True)]
        lab.heal("cable0")
        lab.unplug("cable0")
        lab.wait_link("cable0", "down", 20)
        with pytest.raises(LabError, match="did not get up within 0 s"):
            lab.wait_link("cable0", "up", 0)
        assert lab.counters().cables["cable0"]["a"]["frames"] == 0
        with pytest.raises(ConfigError, match="no cable 'x'"):
            lab.plug("x")
        with pytest.raises(ConfigError, match="no cable 'x', only cable0"):
            lab.wait_link("x", "up", 1)
        for driver in drivers:
            driver.close()
    assert not lab.directory.exists()
    with pytest.raises(LabError, match="does not answer"):
        lab.state()
    told = CliRunner().invoke(app, ["lab", "usb4", "trace", str(trace), "--only", "a router", "--most", "1"])
    assert "write to router: router word 0x3, 1 words: 80000000" in told.output


def test_what_a_killed_lab_left_goes_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="lab") as made:  # shorter than tmp_path may be for sockets
        place = Path(made)
        monkeypatch.setattr("tempfile.tempdir", made)
        left, another = place / "ferrule-usb4-left", place / "ferrule-usb4-another"
        for directory in (left, another):
            directory.mkdir()
        (left / "lock").touch()
        with Usb4Lab(HOSTS) as lab:
            assert not left.exists()
            with Usb4Lab(HOSTS):
                assert lab.state().cables == {}
        assert list(place.iterdir()) == [another]


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long for a socket"):
        Usb4Lab(HOSTS, directory=tmp_path / ("long" * 30))
    with pytest.raises(LabError, match="No such file or directory"):
        Usb4Lab(HOSTS, trace=tmp_path / "nowhere" / "trace")
