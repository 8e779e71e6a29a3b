"""One rank of `ferrule.bench.rails`: ``python -m ferrule.bench.rails_rank BYTES SECONDS``.

All-reduces an array again and again; rank 0 writes a line per operation to the descriptor in REPORT_FD: when it ended
(on the clock that all processes of the machine share), how many seconds it took, and whether the result was right.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import ferrule.fabric as fabric


def main(size: int, seconds: float) -> None:
    with fabric.init(strict=True) as group:
        own = np.arange(size // 4, dtype=np.float32) % 1000 + group.rank
        wanted = sum(own + (rank - group.rank) for rank in range(group.size))
        x = np.empty_like(own)
        going = np.ones(1)
        end = time.monotonic() + seconds
        while going[0]:
            x[:] = own
            group.barrier()
            begin = time.monotonic()
            group.all_reduce(x)
            done = time.monotonic()
            right = np.array_equal(x, wanted)
            if group.rank == 0:
                os.write(int(os.environ["REPORT_FD"]), f"{done} {done - begin} {int(right)}\n".encode())
                going[0] = done < end
            elif not right:
                sys.exit(f"rank {group.rank}: a wrong result")
            group.broadcast(going, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
