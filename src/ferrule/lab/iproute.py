"""Run iproute2's ``ip``, ``tc`` and ``bridge`` inside a namespace of ours, many commands per process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Literal

from ferrule.errors import LabError
from ferrule.lab.netns import Namespace

_SECONDS = 20.0
_MTU_MARGIN = 64


def batch(namespace: Namespace, tool: Literal["ip", "tc", "bridge"], lines: Sequence[str]) -> None:
    """Run the lines in order; the first that fails ends it with a `LabError` that quotes it."""
    program = shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin:/bin") or shutil.which(tool)
    if program is None:
        raise LabError(f"there is no `{tool}` on this machine; install iproute2 (apt install iproute2)")
    with namespace.entered():
        done = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    if done.returncode != 0:
        raise LabError(f"`{tool}` failed: {done.stderr.strip()} (of: {'; '.join(lines)})")


def shape(interface: str, bits_per_second: float, mtu: int) -> str:
    """The ``tc`` line that sends at a rate, as a network card of that speed would.

    The bucket holds a millisecond, and at least one of the large packets that TCP hands over, so that none has to be
    cut up; the queue before it holds 20 ms.
    """
    bucket = max(int(bits_per_second / 8 * 1e-3), 70_000 if mtu < 60_000 else mtu + _MTU_MARGIN)
    queue = max(int(bits_per_second / 8 * 20e-3), 4 * bucket)
    return f"qdisc replace dev {interface} root tbf rate {round(bits_per_second)}bit burst {bucket} limit {queue}"


_SEGMENT_SECONDS, _SMOOTH_SECONDS = 50e-6, 500e-6
_ETHERNET, _LEAST_SEGMENTS, _MOST_SEGMENT_BYTES = 14, 3, 65536


def segment_bytes(bits_per_second: float, mtu: int) -> int:
    """How much TCP may hand over as one packet at that rate: what takes 50 µs, so that time stays fine-grained."""
    wanted = max(int(bits_per_second / 8 * _SEGMENT_SECONDS), _LEAST_SEGMENTS * mtu)
    return min(wanted, _MOST_SEGMENT_BYTES)


def smooth(interface: str, bits_per_second: float, mtu: int, overhead: int) -> str:
    """The ``tc`` line for a host's queue before a cable that the shaper paces.

    It only makes senders wait, as a network card does: what is on its way to the shaper no longer counts as unsent to
    TCP. So its bucket is small, and its rate that of full frames with their ``overhead``, a little less than the
    shaper's, in whose own queue nothing then grows.
    """
    frame = mtu + _ETHERNET
    rate = bits_per_second * 0.999 * frame / (frame + overhead)
    bucket = max(int(bits_per_second / 8 * _SMOOTH_SECONDS), 2 * segment_bytes(bits_per_second, mtu) + _MTU_MARGIN)
    queue = max(int(bits_per_second / 8 * 20e-3), 4 * bucket)
    return f"qdisc replace dev {interface} root tbf rate {round(rate)}bit burst {bucket} limit {queue}"
