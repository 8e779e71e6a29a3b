"""The fabric under vLLM, as plugins of it. Importing this imports neither vLLM nor torch.

vLLM calls both entry points of this module in each of its processes, wherever Ferrule is installed. They do nothing
unless `ACTIVE` says so, which whoever starts vLLM for Ferrule sets.
"""

from __future__ import annotations

import os

ACTIVE = "FERRULE_VLLM"
"""Variable of a vLLM that Ferrule has started: the kind of device that it runs on."""
DEVICES = ("cpu",)
"""Kinds of device that there is a platform for."""


def platform() -> str | None:
    """Entry point ``vllm.platform_plugins``: the class of the platform; None where vLLM runs without Ferrule."""
    return f"{__name__}.platform.FabricCpuPlatform" if os.environ.get(ACTIVE) in DEVICES else None


def register() -> None:
    """Entry point ``vllm.general_plugins``: torch knows the backend before any process makes a group."""
    if os.environ.get(ACTIVE) in DEVICES:
        from ferrule.torch_backend.registration import register as register_backend

        register_backend()
