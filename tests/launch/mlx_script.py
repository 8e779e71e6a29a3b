"""A script as MLX's documentation shows it, for whatever backend there is."""

import mlx.core as mx

world = mx.distributed.init()
x = mx.distributed.all_sum(mx.ones(10))
print(world.rank(), world.size(), x.sum().item())  # noqa: T201
