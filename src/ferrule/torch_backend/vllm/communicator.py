"""vLLM's communicator of a group of ranks: everything that it moves goes over the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from ferrule.errors import FabricError
from ferrule.torch_backend.process_group import FabricProcessGroup
from ferrule.torch_backend.vllm import uneven
from ferrule.torch_backend.vllm.messages import Sending, receive


class FabricCommunicator(CpuCommunicator):  # type: ignore[misc]  # vLLM is not there where types are checked
    """For a group of at least two ranks. What it does not define goes through torch.distributed to the same fabric."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not isinstance(self.device_group, FabricProcessGroup):
            raise FabricError(
                f"vLLM's group {self.unique_name} has the backend {dist.get_backend(self.device_group)} instead of "
                "ferrule, so its tensors would not go over the fabric; see what it says above of backends"
            )
        self._sending = Sending(self.device_group.fabric)
        # Else vLLM gives what stages hand on to its group of gloo.
        self.supports_tensor_dict = True

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        """That vLLM's own shared memory is not used: the fabric has its own, and other hosts."""
        return False

    def all_reduce(self, input_: Tensor) -> Tensor:
        """In place."""
        if torch.compiler.is_compiling():
            dist.all_reduce(input_, group=self.device_group)
        else:
            self.device_group.allreduce([input_], uneven.WAITED_FOR)
        return input_

    def all_gatherv(
        self, input_: Tensor | list[Tensor], dim: int = 0, sizes: Sequence[int] | None = None
    ) -> Tensor | list[Tensor]:
        """Tensors of all ranks, joined along axis 0; ``sizes``: how long each rank's is, if they differ."""
        if dim != 0:
            raise NotImplementedError(f"all_gatherv along axis {dim}: only axis 0 is")
        if isinstance(input_, Tensor):
            return uneven.all_gather(self.device_group, input_, sizes)
        return [uneven.all_gather(self.device_group, each, sizes) for each in input_]

    def reduce_scatterv(self, input_: Tensor, dim: int = -1, sizes: Sequence[int] | None = None) -> Tensor:
        """This rank's part of the sum along axis ``dim``; ``sizes``: how long each rank's is, if they differ."""
        return uneven.reduce_scatter(self.device_group, input_, dim, sizes)

    def send_tensor_dict(self, tensor_dict: dict[str, Tensor], dst: int) -> None:
        """``dst``: the rank in this group."""
        self._sending.send(tensor_dict, dst)

    def recv_tensor_dict(self, src: int) -> dict[str, Tensor]:
        """``src``: the rank in this group."""
        # What a stage in the middle hands on may lie where it puts what it receives next.
        self._sending.wait()
        return receive(self.device_group.fabric, src)
