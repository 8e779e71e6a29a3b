"""Control groups (containers, services) that a process is in, and how much of the processors they may have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ferrule.files import read_number

ROOT = Path("/")


def groups_of(controller: str, root: Path = ROOT) -> Iterator[tuple[int, Path]]:
    """Version (1 or 2) and folder of each group that limits what ``controller`` (``cpu``, ``memory``) counts of this
    process, from its own up to the whole. ``root``: where /proc and /sys are."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    top = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            yield from ((2, group) for group in _up(top, path))
        elif controller in controllers.split(","):
            yield from ((1, group) for group in _up(top / controller, path))


def processor_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of time that this process may have, with all others of its group; None where nothing limits it."""
    quotas = [quota for version, group in groups_of("cpu", root) if (quota := _quota(version, group)) is not None]
    return min(quotas, default=None)


def _quota(version: int, group: Path) -> float | None:
    if version == 1:
        quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
    else:
        try:
            words = (group / "cpu.max").read_text().split()
        except OSError:  # the topmost group has none
            return None
        quota, period = (int(word) if word.isdecimal() else None for word in [*words, "", ""][:2])
    return quota / period if quota is not None and quota > 0 and period else None


def _up(top: Path, path: str) -> Iterator[Path]:
    group = top / path.strip("/")
    # Within a container the path may be the host's, and only the top is there.
    while group != top:
        yield group
        group = group.parent
    yield top
