"""One rank of the tests of the torch backend: ``python torch_rank.py MODULE.CHECK...`` runs checks and reports each."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import ferrule.torch  # noqa: F401 (registers the backend)

TIMEOUT = timedelta(seconds=30)


def main(checks: list[str]) -> None:
    torch.set_num_threads(1)
    if os.environ.get("TORCH_DEVICE"):
        from ferrule.engine.devices.emulated.device import EmulatedDevice

        EmulatedDevice()  # so that torch knows it
        torch.set_default_device(os.environ["TORCH_DEVICE"])
    dist.init_process_group("ferrule", init_method="ferrule://", timeout=TIMEOUT)
    for name in checks:
        module, _, check = name.rpartition(".")
        try:
            getattr(importlib.import_module(module), check)(dist.get_rank(), dist.get_world_size())
        except Exception:  # noqa: BLE001 (whatever it is, the test that waits for it shows it)
            report(name, traceback.format_exc())
        else:
            report(name, "")
    dist.destroy_process_group()


def report(name: str, failure: str) -> None:
    os.write(int(os.environ["REPORT_FD"]), (json.dumps([name, failure]) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
