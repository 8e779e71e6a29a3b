"""The plugins of vLLM, as far as that goes without it: when they are active, and what stages hand on to each other."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from in_threads import on_all, thread_groups
from torch import Tensor
from torch.distributed import HashStore

from ferrule.errors import FabricError
from ferrule.fabric.group import Group
from ferrule.torch_backend.process_group import FabricProcessGroup
from ferrule.torch_backend.vllm import messages, platform, uneven
from ferrule.torch_backend.vllm.messages import Sending, receive

ROOT = Path(__file__).parents[3]
HIDDEN = torch.arange(24.0).view(3, 8)


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    found = thread_groups(3)
    yield found
    for group in found:
        group.close()


def test_only_our_launcher_activates_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in ((None, None), ("", None), ("1", None), ("cpu", "FabricCpuPlatform")):
        monkeypatch.delenv("FERRULE_VLLM", raising=False)
        if value is not None:
            monkeypatch.setenv("FERRULE_VLLM", value)
        found = platform()
        assert (found and found.rpartition(".")[2]) == expected


def test_entry_points_cost_nothing_where_ferrule_did_not_start_vllm() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    entries = [groups[f"vllm.{kind}_plugins"]["ferrule"] for kind in ("platform", "general")]
    script = (
        "import importlib, os, sys\n"
        "os.environ.pop('FERRULE_VLLM', None)\n"
        f"for entry in {entries!r}:\n"
        "    module, name = entry.split(':')\n"
        "    assert getattr(importlib.import_module(module), name)() is None\n"
        "print([name for name in ('torch', 'numpy', 'msgspec', 'vllm') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "tensors",
    [
        {"hidden_states": HIDDEN.bfloat16(), "residual": HIDDEN},
        {"turned": HIDDEN.t(), "part": HIDDEN[:, ::2], "one": torch.tensor(7), "none": torch.zeros(0, 8)},
        {
            "bool": HIDDEN > 3,
            "complex": torch.view_as_complex(HIDDEN.view(3, 4, 2)),
            "float8": HIDDEN.to(torch.float8_e5m2),
        },
        {f"a name that is as long as those of many layers may be, {number}": HIDDEN[0] for number in range(20)},
        {},
    ],
    ids=["a stage's", "with gaps", "other types", "many", "nothing"],
)
def test_tensors_arrive_as_they_were_sent(groups: list[Group], tensors: dict[str, Tensor]) -> None:
    def rank(group: Group) -> dict[str, Tensor]:
        if group.rank == 0:
            sending = Sending(group)
            sending.send(tensors, 2)
            sending.send({"next": HIDDEN + 1}, 2)  # messages keep their order
            sending.wait()
        return {} if group.rank < 2 else receive(group, 0) | receive(group, 0)

    *_, received = on_all(groups, rank)
    assert torch.equal(received.pop("next"), HIDDEN + 1)
    assert list(received) == list(tensors)
    for name, t in tensors.items():
        assert received[name].dtype == t.dtype
        assert received[name].shape == t.shape
        assert received[name].is_contiguous()
        assert torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (received[name], t)))


def test_a_stage_need_not_wait_for_the_next_one(groups: list[Group]) -> None:
    """Else it could not compute the next batch meanwhile. A message is larger than what a channel keeps."""
    large = torch.arange(1 << 19, dtype=torch.float32)
    sending = Sending(groups[0])
    sending.send({"hidden_states": large}, 1)  # and no rank receives yet
    assert torch.equal(receive(groups[1], 0)["hidden_states"], large)
    sending.wait()


def test_only_tensors_of_the_host_are_handed_on(groups: list[Group]) -> None:
    sending = Sending(groups[0])
    with pytest.raises(TypeError, match="'names' is a list; stages hand on tensors only"):
        sending.send({"hidden_states": HIDDEN, "names": []}, 1)
    with pytest.raises(TypeError, match="is on meta"):
        sending.send({"hidden_states": HIDDEN.to("meta")}, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"\xff" * 8, "bytes of description"),
        (b"\x03\0\0\0abc", "rank 1 sent tensors as this version of ferrule does not"),
        (
            len(bad := msgspec.msgpack.encode([("x", "load", [1])])).to_bytes(4, "little") + bad,
            "'load' is no type of torch",
        ),
        (len(bad := msgspec.msgpack.encode([("x", "int8", [-1])])).to_bytes(4, "little") + bad, "install the same one"),
    ],
)
def test_what_is_no_description_is_an_error(groups: list[Group], text: bytes, told: str) -> None:
    groups[1].send(torch.frombuffer(bytearray(text.ljust(messages.FRAME, b"\0")), dtype=torch.uint8), 0)
    with pytest.raises(FabricError, match=told):
        receive(groups[0], 1)


def on_process_groups(groups: list[Group], body: Callable[[FabricProcessGroup], Any]) -> list[Any]:
    return on_all(groups, lambda group: body(FabricProcessGroup(HashStore(), group, "test", in_pieces=False)))


@pytest.mark.parametrize("sizes", [None, [2, 2, 2], [1, 0, 3]])
def test_all_gather_of_uneven_rows(groups: list[Group], sizes: list[int] | None) -> None:
    rows = [torch.arange(4.0 * each).view(-1, 4) + 100 * rank for rank, each in enumerate(sizes or [2, 2, 2])]
    for found in on_process_groups(groups, lambda group: uneven.all_gather(group, rows[group.rank()], sizes)):
        assert torch.equal(found, torch.cat(rows))


@pytest.mark.parametrize("sizes", [None, [2, 2, 2], [1, 0, 5]])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reduce_scatter_of_uneven_parts(groups: list[Group], sizes: list[int] | None, dim: int) -> None:
    shape = [3, 6, 6] if dim else [6, 3, 6]
    inputs = [torch.arange(108.0).view(shape) * (rank + 1) for rank in range(3)]
    parts = sum(inputs).split(sizes or [2, 2, 2], dim)
    found = on_process_groups(groups, lambda group: uneven.reduce_scatter(group, inputs[group.rank()], dim, sizes))
    for part, expected in zip(found, parts, strict=True):
        assert torch.equal(part, expected)


def test_sizes_that_do_not_fit(groups: list[Group]) -> None:
    group = FabricProcessGroup(HashStore(), groups[0], "test", in_pieces=False)
    with pytest.raises(ValueError, match=r"rank 0 has 2 rows; sizes of 3 ranks say \[1, 1, 2\]"):
        uneven.all_gather(group, torch.zeros(2, 2), [1, 1, 2])
    with pytest.raises(ValueError, match=r"axis 1 of shape \(2, 4\) does not divide into 3 equal parts"):
        uneven.reduce_scatter(group, torch.zeros(2, 4), 1)
    with pytest.raises(ValueError, match=r"axis 0 of shape \(2, 4\) is not \[1, 2\], of 3 ranks"):
        uneven.reduce_scatter(group, torch.zeros(2, 4), 0, [1, 2])
