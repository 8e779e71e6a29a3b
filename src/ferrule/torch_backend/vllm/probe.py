"""Whether vLLM runs over the fabric in this environment: ``python -m ferrule.torch_backend.vllm.probe``.

Imports vLLM, has it choose its platform and start its plugins, and reduces over a group of one process. Prints a line
of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from ferrule.torch_backend.vllm import ACTIVE, DEVICES


def main() -> None:
    os.environ[ACTIVE] = DEVICES[0]
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import torch
    import torch.distributed as dist
    import vllm
    from torch._C._distributed_c10d import FileStore
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    from ferrule.torch_backend.process_group import FabricProcessGroup
    from ferrule.torch_backend.vllm.platform import FabricCpuPlatform

    if not isinstance(current_platform, FabricCpuPlatform):
        raise SystemExit(f"vLLM took the platform {type(current_platform).__name__}, not Ferrule's")
    load_general_plugins()
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group(current_platform.dist_backend, store=store, rank=0, world_size=1)
        x = torch.ones(4)
        dist.all_reduce(x)
        group = dist.group.WORLD
        reduced = bool((x == 1).all()) and isinstance(group, FabricProcessGroup)
        dist.destroy_process_group()
    if not reduced:
        raise SystemExit(f"all_reduce over {type(group).__name__} gave {x.tolist()}")
    found = {"vllm": vllm.__version__, "torch": torch.__version__, "ferrule": metadata.version("ferrule")}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
