"""vLLM's command over the fabric: ``python -m ferrule.torch_backend.vllm serve MODEL …``.

As ``vllm serve MODEL …`` with ``FERRULE_VLLM`` set, but it ends with an error where vLLM would take another platform,
and so gloo, in silence: where plugins are filtered, or ``VLLM_TARGET_DEVICE`` chooses for it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import sys
import threading
import time

from ferrule.torch_backend.vllm import ACTIVE, DEVICES

_ENGINE = "EngineCore"
"""The name of the engine's process begins so."""
_LOOK_SECONDS = 0.1
_LAST_WORDS_SECONDS = 0.5
"""In which clients are told that their answers ended."""


def main() -> None:
    if os.environ.setdefault(ACTIVE, DEVICES[0]) not in DEVICES:
        raise SystemExit(f"error: {ACTIVE}={os.environ[ACTIVE]!r} is none of {', '.join(DEVICES)}")
    from vllm.platforms import current_platform

    if not current_platform.get_device_communicator_cls().startswith(f"{__package__}."):
        raise SystemExit(
            f"error: vLLM took the platform {type(current_platform).__name__}, with which tensors go over gloo: unset "
            "VLLM_TARGET_DEVICE, and let VLLM_PLUGINS name ferrule, or unset it"
        )
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv[0] = "vllm"
    threading.Thread(target=_end_with_the_engine, daemon=True, name="engine watch").start()
    vllm()


def _end_with_the_engine() -> None:
    """End this process, the server, soon after the process of the engine: by itself it looks every 5 s, and then waits
    for its clients."""
    seen: dict[int, multiprocessing.process.BaseProcess] = {}
    while True:
        time.sleep(_LOOK_SECONDS)
        seen |= {each.pid or 0: each for each in multiprocessing.active_children() if each.name.startswith(_ENGINE)}
        if any(not each.is_alive() for each in seen.values()):
            time.sleep(_LAST_WORDS_SECONDS)
            os._exit(1)


if __name__ == "__main__":  # processes that vLLM spawns import this module, too
    main()
