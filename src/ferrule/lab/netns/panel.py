"""The namespace between the hosts, where cables are joined: by the kernel's bridge, or by the shaper."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ferrule import _emulation
from ferrule.errors import LabError
from ferrule.hardware import Shaping
from ferrule.lab.netns.interfaces import Interfaces
from ferrule.lab.netns.namespace import Namespace

Flow = Literal["moves", "stalled", "mute", "dark"]
_MOST_CABLES = 1 << 10
_FLOWS: dict[Flow, int] = {"moves": 0, "stalled": 1, "mute": 2, "dark": 3}


class Panel:
    """Holds a network namespace, and the shaper as soon as a cable needs it. ``seed``: of all that chance decides."""

    def __init__(self, seed: int) -> None:
        self.namespace = Namespace()
        self.ports = Interfaces(self.namespace)
        self._seed = seed
        self._shaper: _emulation.Shaper | None = None

    @property
    def shaper(self) -> _emulation.Shaper:
        if self._shaper is None:
            try:
                self._shaper = _emulation.Shaper()
            except RuntimeError as error:
                raise LabError(f"the lab's shaper did not start: {error}") from error
        return self._shaper

    def join(self, cable: int, interfaces: Sequence[str]) -> int:
        """Have the shaper join these, the ends of ``cable``; returns its own number for that."""
        ends: list[int] = []
        try:
            for interface in interfaces:
                ends.append(self.ports.packets(interface))
        except BaseException:
            for end in ends:
                os.close(end)
            raise
        try:
            return self.shaper.join(ends, (self._seed * _MOST_CABLES + cable) % (1 << 64))
        except RuntimeError as error:
            raise LabError(f"the lab's shaper took no cable: {error}") from error

    def set(self, cable: int, directions: Sequence[tuple[Shaping, Flow]]) -> None:
        """Set the shaping of what each of its ends sends."""
        for end, (shaping, flow) in enumerate(directions):
            # The native shaper knows no None: 0 is without a limit.
            limits = {"rate": shaping.rate or 0.0, "collapse": shaping.collapse or 0.0, "queue": shaping.queue_bytes}
            self.shaper.set(cable, end, flow=_FLOWS[flow], **(vars(shaping) | limits))

    def prepare(self, hosts: Sequence[Namespace]) -> None:
        """Congestion control as most machines have it: BBR's own pacing mistakes a cable of microseconds."""
        for host in hosts:
            with host.entered():
                setting = Path("/proc/sys/net/ipv4/tcp_congestion_control")
                if setting.read_text().strip() == "bbr":
                    allowed = setting.with_name("tcp_allowed_congestion_control").read_text().split()
                    setting.write_text("cubic" if "cubic" in allowed else "reno")

    def close(self) -> None:
        """End the shaper, and let go of the namespace. Safe to call twice."""
        if self._shaper is not None:
            self._shaper.close()
            self._shaper = None
        self.ports.close()
        self.namespace.close()
