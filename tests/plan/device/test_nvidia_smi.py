"""NVIDIA's tool is asked with a deadline; that it is not there, fails, hangs or has no number is no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.agent.report import _nvidia_gpus
from ferrule.cluster.reports import DeviceReport
from ferrule.links import nvidia_smi
from ferrule.links.power import nvidia_watts
from ferrule.plan.device.measure import _nvidia_free


def play(folder: Path, script: str) -> None:
    """Have ``script`` be the tool."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def test_rows_are_told_as_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    play(
        tmp_path,
        """case "$*" in
        "--query-gpu=name,memory.total,memory.free --format=csv,noheader,nounits")
            echo "NVIDIA H100, 81559, 81000"; echo; echo "NVIDIA L4, 23034, 1" ;;
        "--query-gpu=power.draw --format=csv,noheader,nounits") echo 70.25; echo 30 ;;
        "--id=1 --query-gpu=memory.free --format=csv,noheader,nounits") echo 12 ;;
        *) echo 1; exit 6 ;;
        esac""",
    )
    rows = nvidia_smi.ask("name,memory.total,memory.free", 10)
    assert rows == [["NVIDIA H100", "81559", "81000"], ["NVIDIA L4", "23034", "1"]]
    assert list(_nvidia_gpus()) == [
        DeviceReport("gpu", "NVIDIA H100", 81559 << 20, 81000 << 20),
        DeviceReport("gpu", "NVIDIA L4", 23034 << 20, 1 << 20),
    ]
    assert nvidia_watts() == 100.25
    assert (_nvidia_free("1"), _nvidia_free("0")) == (12 << 20, None)


def test_no_answer_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.ask("name", 10) == []
    for script in ("exit 9", "echo '[N/A], [N/A]'"):
        play(tmp_path, script)
        assert (nvidia_watts(), list(_nvidia_gpus()), _nvidia_free("0")) == (None, [], None)
    play(tmp_path, "exec /bin/sleep 60")
    assert nvidia_smi.ask("name", 0.05) == []
