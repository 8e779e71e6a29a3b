"""Functions that torch renamed in 2.13, under their new names in every version."""

import torch.distributed as dist
import torch.distributed._functional_collectives as functional

all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

functional_gather = getattr(functional, "all_gather_single", functional.all_gather_tensor)
functional_scatter = getattr(functional, "reduce_scatter_single", functional.reduce_scatter_tensor)
functional_gather_list = getattr(functional, "all_gather_single_coalesced", functional.all_gather_into_tensor_coalesced)
functional_scatter_list = getattr(
    functional, "reduce_scatter_single_coalesced", functional.reduce_scatter_tensor_coalesced
)
