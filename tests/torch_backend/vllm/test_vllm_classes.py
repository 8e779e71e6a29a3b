"""The classes that vLLM is given, over stand-ins for those of its own that they derive from."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from in_threads import on_all, thread_groups
from torch.distributed import HashStore

from ferrule.errors import ConfigError, FabricError
from ferrule.fabric.group import Group
from ferrule.torch_backend.process_group import FabricProcessGroup

ROOM = "ferrule.torch_backend.vllm"


class CpuCommunicator:
    def __init__(self, cpu_group: Any, device: Any = None, device_group: Any = None, unique_name: str = "") -> None:
        self.device_group, self.unique_name = device_group, unique_name
        self.supports_tensor_dict = self._all_group_ranks_share_shm_group_name()

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return True


class CpuPlatform:
    @classmethod
    def check_and_update_config(cls, config: Any) -> None:
        if config.parallel_config.worker_cls == "auto":
            config.parallel_config.worker_cls = "vllm.v1.worker.cpu_worker.CPUWorker"


class CPUWorker:
    def load_model(self, **options: Any) -> None:
        self.loaded = options


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """vLLM as far as it is imported. ``first``: whether this is the first stage."""
    asked = SimpleNamespace(split_group=False, first=False)
    members: dict[str, dict[str, Any]] = {
        "vllm": {"envs": SimpleNamespace(VLLM_DISTRIBUTED_USE_SPLIT_GROUP=False)},
        "vllm.platforms": {"current_platform": CpuPlatform},
        "vllm.platforms.cpu": {"CpuPlatform": CpuPlatform},
        "vllm.distributed.device_communicators.cpu_communicator": {"CpuCommunicator": CpuCommunicator},
        "vllm.distributed.parallel_state": {"get_pp_group": lambda: SimpleNamespace(is_first_rank=asked.first)},
        "vllm.v1.worker.cpu_worker": {"CPUWorker": CPUWorker},
    }
    for name, values in members.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    asked.envs = members["vllm"]["envs"]
    yield asked
    for part in ("communicator", "platform", "worker"):
        sys.modules.pop(f"{ROOM}.{part}", None)


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    found = thread_groups(2)
    yield found
    for group in found:
        group.close()


def part(name: str) -> Any:
    return importlib.import_module(f"{ROOM}.{name}")


def communicator(group: Group) -> Any:
    device_group = FabricProcessGroup(HashStore(), group, "test", in_pieces=False)
    return part("communicator").FabricCommunicator(None, device_group=device_group, unique_name="tp:0")


def test_a_communicator_moves_all_over_the_fabric(groups: list[Group]) -> None:
    part("communicator")  # imported by one thread

    def rank(group: Group) -> tuple[Any, ...]:
        ours = communicator(group)
        x = torch.full((3,), 1.0 + group.rank)
        reduced = ours.all_reduce(x)
        lists = ours.all_gatherv([x[: group.rank + 1], x[: group.rank + 1]], sizes=[1, 2])
        part_of_sum = ours.reduce_scatterv(torch.ones(4, 3), dim=0, sizes=[1, 3])
        if group.rank == 0:
            ours.send_tensor_dict({"hidden_states": x}, 1)
            handed = ours.recv_tensor_dict(1)
        else:
            handed = ours.recv_tensor_dict(0)
            ours.send_tensor_dict(handed, 0)
        return reduced is x, x, lists, part_of_sum, handed, ours.supports_tensor_dict

    for number, (same, x, lists, part_of_sum, handed, carries) in enumerate(on_all(groups, rank)):
        assert same
        assert x.tolist() == [3.0] * 3
        assert [each.tolist() for each in lists] == [[3.0] * 3] * 2
        assert torch.equal(part_of_sum, torch.full((1 + 2 * number, 3), 2.0))
        assert torch.equal(handed["hidden_states"], x)
        assert carries  # else vLLM gives it to gloo


def test_another_backend_is_an_error() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(FabricError, match="vLLM's group pp:0 has the backend gloo instead of ferrule"):
            part("communicator").FabricCommunicator(None, device_group=dist.group.WORLD, unique_name="pp:0")
    finally:
        dist.destroy_process_group()


def test_the_platform_names_backend_communicator_and_worker(vllm: SimpleNamespace) -> None:
    ours = part("platform").FabricCpuPlatform
    assert dist.is_backend_available(ours.dist_backend)
    module, _, name = ours.get_device_communicator_cls().rpartition(".")
    assert hasattr(importlib.import_module(module), name)
    for given, expected in (("auto", f"{ROOM}.worker.FabricWorker"), ("of.another.plugin", "of.another.plugin")):
        config = SimpleNamespace(parallel_config=SimpleNamespace(worker_cls=given))
        ours.check_and_update_config(config)
        assert config.parallel_config.worker_cls == expected
    vllm.envs.VLLM_DISTRIBUTED_USE_SPLIT_GROUP = True
    with pytest.raises(ConfigError, match="VLLM_DISTRIBUTED_USE_SPLIT_GROUP=1"):
        ours.check_and_update_config(config)


def test_a_later_stage_has_what_it_receives_into(vllm: SimpleNamespace) -> None:
    worker = part("worker").FabricWorker()
    made = SimpleNamespace(make_empty_intermediate_tensors=lambda **of: of)
    worker.model_runner = SimpleNamespace(
        intermediate_tensors=None,
        model=made,
        max_num_tokens=512,
        device="cpu",
        model_config=SimpleNamespace(dtype=torch.bfloat16),
    )
    vllm.first = True
    worker.load_model(load_dummy_weights=False)
    assert worker.loaded == {"load_dummy_weights": False}
    assert worker.model_runner.intermediate_tensors is None
    vllm.first = False
    worker.load_model()
    assert worker.model_runner.intermediate_tensors == {"batch_size": 512, "dtype": torch.bfloat16, "device": "cpu"}
    worker.model_runner.intermediate_tensors = "as vLLM made them"
    worker.load_model()
    assert worker.model_runner.intermediate_tensors == "as vLLM made them"


def test_the_command_does_not_fall_back_to_gloo_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    main = importlib.import_module(f"{ROOM}.__main__").main
    monkeypatch.setenv("FERRULE_VLLM", "cuda")
    with pytest.raises(SystemExit, match="FERRULE_VLLM='cuda' is none of cpu"):
        main()
    monkeypatch.setenv("FERRULE_VLLM", "cpu")
    stock = SimpleNamespace(get_device_communicator_cls=lambda: "vllm.distributed.CpuCommunicator")
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", stock)
    with pytest.raises(SystemExit, match="tensors go over gloo: unset VLLM_TARGET_DEVICE"):
        main()
