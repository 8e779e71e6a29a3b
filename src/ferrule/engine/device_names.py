"""Names of devices as users write them: a kind, and after a colon which of several, such as ``cuda:1``."""

from __future__ import annotations

from ferrule.errors import ConfigError

AUTO = "auto"
CPU = "cpu"
EMULATED = "emulated"
KINDS = (CPU, "cuda", "xpu", "mps", EMULATED)
"""NVIDIA's and AMD's GPUs are ``cuda``, as torch calls both."""
MOST_EMULATED = 8
"""Emulated accelerators of a machine: enough for tests."""
EMULATED_MEMORY = 1 << 30
"""Bytes of each."""


def parse_device(name: str) -> tuple[str, int | None]:
    """The kind, and which of several if it says so. Raises `ConfigError` for anything else."""
    kind, colon, number = name.partition(":")
    if kind not in KINDS or (colon and not number.isdecimal()):
        raise ConfigError(
            f"--device {name!r} is not one of {AUTO}, {', '.join(KINDS)}, or one of several by its number: cuda:1"
        )
    return kind, int(number) if colon else None


def parse_devices(text: str) -> tuple[str, ...]:
    """Names for ranks 0, 1, …, or one for all of them. Raises `ConfigError` for what is none."""
    names = tuple(each.strip() for each in text.split(","))
    for name in names:
        if name != AUTO:
            parse_device(name)
    return names


def device_of(text: str, rank: int, size: int) -> str:
    """The name for ``rank`` of ``size``. Raises `ConfigError` where there are names for another number of ranks."""
    names = parse_devices(text)
    if len(names) == 1:
        return names[0]
    if len(names) != size:
        raise ConfigError(
            f"--device {text} names {len(names)} devices, and there are {size} ranks: name as many, or one"
        )
    return names[rank]
