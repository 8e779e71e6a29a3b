"""Settings of a model's ranks."""

from __future__ import annotations

from collections.abc import Mapping

from ferrule.config.values import read_choice

DEVICE_PEERS = ("auto", "always", "never")
"""Whether devices of one host exchange tensors by themselves (NCCL, RCCL): where they can; they must; no."""


def device_peers(environ: Mapping[str, str]) -> str:
    """``FERRULE_DEVICE_PEERS``, one of `DEVICE_PEERS`. Raises `ConfigError`."""
    return read_choice(environ, "FERRULE_DEVICE_PEERS", DEVICE_PEERS, f"none of {', '.join(DEVICE_PEERS)}")


def pins_threads(environ: Mapping[str, str]) -> bool:
    """``FERRULE_PIN``: whether a rank's threads are tied to cores of their own. Raises `ConfigError`."""
    return read_choice(environ, "FERRULE_PIN", ("1", "0"), "neither 1 nor 0") == "1"


def uses_vendor_kernels(environ: Mapping[str, str]) -> bool:
    """``FERRULE_VENDOR_KERNELS``: whether packed weights on a device may be multiplied by kernels of other libraries.
    Raises `ConfigError`."""
    return read_choice(environ, "FERRULE_VENDOR_KERNELS", ("1", "0"), "neither 1 nor 0") == "1"
