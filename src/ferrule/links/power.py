"""Watts, where a machine tells them: RAPL counters, sensors of GPUs, NVIDIA's tool. Of chips, not of the machine."""

from __future__ import annotations

import time
from pathlib import Path

from ferrule.files import read_number
from ferrule.links import nvidia_smi

ROOT = Path("/")
_GPU_SENSORS = ("amdgpu", "xe", "i915")
_NVIDIA_SECONDS = 5.0


class PowerMeter:
    """The mean watts from its making until `watts` is asked. ``root``: where /sys is."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._domains = [
            folder
            for folder in sorted((root / "sys/class/powercap").glob("*-rapl:*"))
            if folder.name.count(":") == 1  # those below a package are in it
        ]
        self._begin = time.perf_counter()
        self._energy = [read_number(folder / "energy_uj") for folder in self._domains]

    def watts(self) -> float | None:
        """None where nothing tells, or only to root (RAPL, since 2020)."""
        chips = [self._rapl(), *self._sensors()]
        # An APU's sensor and RAPL see the same package.
        package = max((value for value in chips if value is not None), default=None)
        nvidia = nvidia_watts()
        return package if nvidia is None else nvidia + (package or 0.0)

    def _rapl(self) -> float | None:
        seconds = time.perf_counter() - self._begin
        total, known = 0.0, False
        for folder, before in zip(self._domains, self._energy, strict=True):
            after = read_number(folder / "energy_uj")
            if before is None or after is None or seconds <= 0:
                continue
            if after < before:  # it counts up to its range and begins again
                after += read_number(folder / "max_energy_range_uj") or 0
            total, known = total + (after - before) * 1e-6 / seconds, True
        return total if known and total > 0 else None

    def _sensors(self) -> list[float | None]:
        found: list[float | None] = []
        for folder in sorted((self._root / "sys/class/hwmon").glob("hwmon*")):
            try:
                name = (folder / "name").read_text().strip()
            except OSError:
                continue
            if name in _GPU_SENSORS:
                microwatts = read_number(folder / "power1_average") or read_number(folder / "power1_input")
                found.append(microwatts * 1e-6 if microwatts else None)
        return found


def nvidia_watts() -> float | None:
    """Watts that all NVIDIA GPUs draw now; None where there is none or it does not tell."""
    try:
        return sum(float(watts) for (watts,) in nvidia_smi.ask("power.draw", _NVIDIA_SECONDS)) or None
    except ValueError:
        return None
