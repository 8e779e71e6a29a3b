"""A script that knows nothing of Ferrule but the name of the backend. Writes what it saw to the folder it is given."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

seen = []
for _ in range(2):  # torchrun's store stays the same, the group is another one
    dist.init_process_group("ferrule")
    x = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    seen.append(f"{type(dist.group.WORLD).__name__} {x.tolist()}")
    rank = dist.get_rank()
    dist.destroy_process_group()
(Path(sys.argv[1]) / f"rank-{rank}").write_text("\n".join(seen))
