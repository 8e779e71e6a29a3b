"""Settings from the environment: RDMA devices to use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ferrule.errors import ConfigError

VerbsType = Literal["auto", "RC", "UC"]


@dataclass(frozen=True)
class VerbsSettings:
    """RDMA devices to use, and how.

    ``devices``: their exact names; empty for all. ``exclude``: all but those. ``type`` of the queue pairs: RC is
    reliable in the adapter, UC is not; auto takes RC where both ends have it.
    """

    devices: tuple[str, ...] = ()
    exclude: bool = False
    type: VerbsType = "auto"

    def allows(self, device: str) -> bool:
        return not self.devices or (device in self.devices) != self.exclude

    def names(self, device: str) -> bool:
        """Whether this very device was asked for."""
        return not self.exclude and device in self.devices

    def missing(self, there: Collection[str]) -> list[str]:
        """Those that were asked for and are not ``there``."""
        return [] if self.exclude else [device for device in self.devices if device not in there]


def verbs_settings(environ: Mapping[str, str]) -> VerbsSettings:
    """``FERRULE_VERBS_DEVICES`` (``a,b`` or ``^a,b`` for all but those) and ``FERRULE_VERBS_TYPE`` (auto, RC, UC).

    Raises `ConfigError`.
    """
    text = environ.get("FERRULE_VERBS_DEVICES", "").strip()
    devices = tuple(name.strip() for name in text.removeprefix("^").split(",")) if text else ()
    if not all(name and name.isprintable() and "^" not in name for name in devices):
        raise ConfigError(
            f"FERRULE_VERBS_DEVICES={text!r} is no list of device names; give a,b or ^a,b for all but those"
        )
    kind = environ.get("FERRULE_VERBS_TYPE") or "auto"
    for known in get_args(VerbsType):
        if kind.lower() == known.lower():
            return VerbsSettings(devices, text.startswith("^"), known)
    raise ConfigError(f"FERRULE_VERBS_TYPE={kind!r} is no type of queue pair; choose one of auto, RC, UC")
