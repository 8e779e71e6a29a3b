"""A torch script that knows nothing of its launcher: two steps of DDP over each backend that it is given."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ferrule.torch  # noqa: F401 (where Ferrule is installed torch finds it by itself)

for backend in sys.argv[1:]:
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(10 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    total = sum(parameter.detach().sum() for parameter in model.parameters())
    print(backend, dist.get_world_size(), f"{float(total):.5f}", flush=True)  # noqa: T201
    dist.destroy_process_group()
