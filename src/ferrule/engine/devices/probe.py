"""Probe of a device: whether it can be opened, copied to and computed on: ``python -m ferrule.engine.devices.probe``.

The last line on stderr says why not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_COUNT = 1024


def main(arguments: Sequence[str]) -> int:
    import torch

    from ferrule.engine.devices.registry import open_device
    from ferrule.errors import FerruleError

    try:
        device = open_device(arguments[0], 1)
        values = torch.arange(_COUNT, dtype=torch.float32)
        found = device.download(device.upload(values) + 1)
        device.synchronize()
    except (FerruleError, RuntimeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not torch.equal(found, values + 1):
        sys.stderr.write(f"{arguments[0]} computes wrong numbers\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
