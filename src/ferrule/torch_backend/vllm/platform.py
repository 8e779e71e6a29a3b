"""vLLM's platform of processors, with groups of the fabric instead of gloo's."""

from __future__ import annotations

from typing import Any

from vllm import envs
from vllm.platforms.cpu import CpuPlatform

from ferrule.errors import ConfigError
from ferrule.torch_backend.registration import BACKEND, register

_STOCK_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
_ROOM = __name__.rpartition(".")[0]

register()  # a backend that torch does not know would become gloo, with a warning


class FabricCpuPlatform(CpuPlatform):  # type: ignore[misc]  # vLLM is not there where types are checked
    """What vLLM asks for where ``FERRULE_VLLM=cpu``; everything else is that of its own platform."""

    dist_backend = BACKEND

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return f"{_ROOM}.communicator.FabricCommunicator"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Raises `ConfigError` for a setting with which tensors would not go over the fabric."""
        super().check_and_update_config(vllm_config)
        if envs.VLLM_DISTRIBUTED_USE_SPLIT_GROUP:
            raise ConfigError("VLLM_DISTRIBUTED_USE_SPLIT_GROUP=1 is for backends that split groups; unset it")
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == _STOCK_WORKER:
            parallel.worker_cls = f"{_ROOM}.worker.FabricWorker"
