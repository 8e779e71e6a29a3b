"""torch's ProcessGroup over a group of the fabric."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup, Store, Work

from ferrule.errors import FabricError
from ferrule.fabric import Group
from ferrule.fabric.core import NOT_HERE
from ferrule.staging import ACCELERATORS, DirectMessages, DirectTensor, copier_of
from ferrule.torch_backend import steps
from ferrule.torch_backend.devices import Role, cut_elements, cut_gather, cut_scatter, device_tensors
from ferrule.torch_backend.reductions import FABRIC_REDUCTIONS
from ferrule.torch_backend.steps import Step
from ferrule.torch_backend.work import Done, Part, Pending

_DONE = Done()
_NO_TIME = timedelta(0)
# For calls without options: a sum where there is something to reduce, not waited for, within the group's timeout.
_DEFAULTS = AllreduceOptions()


class FabricProcessGroup(ProcessGroup):
    """Process group whose methods ``torch.distributed`` calls. ``fabric`` is the group underneath, to `describe` or to
    use directly.

    Synchronous calls of torch (``async_op=False``) run in the calling thread. All others start at once, run in the
    order of their calls, and return a `Pending`. Errors are Ferrule's own (`PeerLost`, `FabricTimeout`, …).
    ``in_pieces``: every rank has an accelerator, so that large tensors on it are moved in pieces.
    """

    def __init__(self, store: Store, group: Group, name: str, *, in_pieces: bool) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self.fabric = group
        self.in_pieces = in_pieces
        self._store = store
        self._name = name
        self._description = "undefined"
        self.coalesced: list[Pending] | None = None
        self._direct = DirectMessages(group)
        self._all_reduce = group._core.native.all_reduce_torch
        self._timeout = group._core.timeout

    def getBackendName(self) -> str:
        return "ferrule"

    def getRank(self) -> int:
        return self.fabric.rank

    def getSize(self) -> int:
        return self.fabric.size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    @property
    def group_desc(self) -> str:
        return self._description

    def get_group_store(self) -> Store:
        return self._store

    # torch asks its backend objects in C++ for abilities. There is none here, and none of these abilities.
    supports_coalescing = False
    supports_splitting = False
    supports_time_estimate = False

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        return False

    def _get_backend(self, device: torch.device) -> FabricProcessGroup:
        if device.type != "cpu" and copier_of(device) is None:
            raise RuntimeError(f"the backend ferrule serves cpu, {', '.join(ACCELERATORS)}; not {device.type}")
        return self

    def shutdown(self) -> None:
        self.fabric.close()

    def abort(self) -> None:
        self.fabric.abort(f"rank {self.fabric.rank} aborted the process group")

    def allreduce(self, tensors: list[Tensor], opts: Any = _DEFAULTS) -> Work:
        # The hot path: what can be reduced where it lies goes straight to the native core.
        status = self._all_reduce(tensors, opts, FABRIC_REDUCTIONS, self._timeout)
        if status == NOT_HERE:
            return self.allreduce_coalesced(tensors, opts)
        self.fabric._core.check(status)
        return _DONE

    @device_tensors(Role.BOTH, cut=cut_elements)
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = _DEFAULTS) -> Work:
        return self._run([steps.all_reduce(self.fabric, t, opts.reduceOp) for t in tensors], tensors, opts)

    @device_tensors(Role.TO_ROOT, cut=cut_elements)
    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        return self._run([steps.reduce(self.fabric, t, opts.rootRank, opts.reduceOp) for t in tensors], tensors, opts)

    @device_tensors(Role.FROM_ROOT, cut=cut_elements)
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        return self._run([steps.broadcast(self.fabric, t, opts.rootRank) for t in tensors], tensors, opts)

    @device_tensors(Role.WRITTEN, Role.READ, cut=cut_gather)
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = _DEFAULTS) -> Work:  # noqa: A002
        return self._run([steps.all_gather(self.fabric, output, input)], [output], opts)

    @device_tensors(Role.WRITTEN, Role.READ)
    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = _DEFAULTS) -> Work:
        pairs = zip(outputs, inputs, strict=True)
        return self._run([steps.all_gather(self.fabric, out, t) for out, t in pairs], outputs, opts)

    @device_tensors(Role.WRITTEN, Role.READ)
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = _DEFAULTS) -> Work:
        pairs = zip(outputs, inputs, strict=True)
        return self._run([steps.all_gather_list(self.fabric, outs, t) for outs, t in pairs], _flatten(outputs), opts)

    @device_tensors(Role.WRITTEN, Role.READ)
    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = _DEFAULTS) -> Work:
        """Here ``outputs[r][i]`` gets ``inputs[i]`` of rank r."""
        lists = [list(outs) for outs in zip(*outputs, strict=True)]
        return self.allgather(lists, inputs, opts)

    @device_tensors(Role.WRITTEN, Role.READ, cut=cut_scatter)
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = _DEFAULTS) -> Work:  # noqa: A002
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    @device_tensors(Role.WRITTEN, Role.READ)
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = _DEFAULTS
    ) -> Work:
        pairs = zip(outputs, inputs, strict=True)
        return self._run([steps.reduce_scatter(self.fabric, out, t, opts.reduceOp) for out, t in pairs], outputs, opts)

    @device_tensors(Role.WRITTEN, Role.READ)
    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = _DEFAULTS) -> Work:
        pairs = zip(outputs, inputs, strict=True)
        return self._run(
            [steps.reduce_scatter_list(self.fabric, out, ts, opts.reduceOp) for out, ts in pairs], outputs, opts
        )

    @device_tensors(Role.WRITTEN, Role.READ)
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """``outputs`` is empty but on the root."""
        lists = outputs or [[]] * len(inputs)
        pairs = zip(lists, inputs, strict=True)
        plan = [steps.gather(self.fabric, outs, t, opts.rootRank) for outs, t in pairs]
        return self._run(plan, _flatten(outputs), opts)

    @device_tensors(Role.WRITTEN, Role.READ)
    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """``inputs`` is empty but on the root."""
        lists = inputs or [[]] * len(outputs)
        pairs = zip(outputs, lists, strict=True)
        plan = [steps.scatter(self.fabric, out, ts, opts.rootRank) for out, ts in pairs]
        return self._run(plan, outputs, opts)

    @device_tensors(Role.WRITTEN, Role.READ)
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = _DEFAULTS,
    ) -> Work:
        step = steps.all_to_all(self.fabric, output, input, output_split_sizes, input_split_sizes)
        return self._run([step], [output], opts)

    @device_tensors(Role.WRITTEN, Role.READ)
    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = _DEFAULTS) -> Work:
        return self._run([steps.all_to_all_list(self.fabric, outputs, inputs)], outputs, opts)

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Work:
        direct = self._find(tensors, dst, tag)
        return self._send(tensors, dst, tag) if direct is None else self._run([Step(direct.send)], tensors)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Work:
        direct = self._find(tensors, src, tag)
        if direct is None:
            return self._recv(tensors, src, tag)
        receipt = direct.receive()
        work = self._run([Step(receipt.start)], tensors, source=src)
        if isinstance(work, Pending):
            work.bring_home(receipt.home)
        else:
            receipt.home()
        return work

    def _find(self, tensors: list[Tensor], peer: int, tag: int) -> DirectTensor | None:
        """One tensor of a device, without a tag, whose memory an RDMA adapter reads and writes."""
        copier = copier_of(tensors[0].device) if len(tensors) == 1 and not tag else None
        return None if copier is None else self._direct.find(tensors[0].detach(), peer, copier)

    @device_tensors(Role.READ)
    def _send(self, tensors: list[Tensor], dst: int, tag: int) -> Work:
        return self._run([step for t in tensors for step in steps.send(self.fabric, t, dst, tag)], tensors)

    @device_tensors(Role.WRITTEN)
    def _recv(self, tensors: list[Tensor], src: int, tag: int) -> Work:
        plan = [step for t in tensors for step in steps.recv(self.fabric, t, src, tag)]
        return self._run(plan, tensors, source=src)

    @device_tensors(Role.WRITTEN)
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """The message that comes first, whose ever it is; each rank has its turn where several have come."""
        if self.fabric.size == 2:
            return self.recv(tensors, 1 - self.fabric.rank, tag)
        if tag:
            raise FabricError("a message with a tag is two messages here, of one rank: to receive it, give src")
        return self._run([step for t in tensors for step in steps.recv(self.fabric, t, None)], tensors)

    def barrier(self, opts: Any = _DEFAULTS) -> Work:
        return self._run([Step(self.fabric.barrier)], [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose `FabricTimeout` names the rank that was waited for; ``wait_all_ranks`` changes nothing."""
        self.fabric.barrier(timeout=None if timeout is None else timeout.total_seconds())

    def _start_coalescing(self, device: torch.device) -> None:
        self.coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self.coalesced = self.coalesced or [], None
        return Pending([part for work in works for part in work.parts], [])

    def _run(self, plan: Sequence[Step], result: list[Tensor], opts: Any = _DEFAULTS, source: int = -1) -> Work:
        given = opts.timeout
        timeout = given.total_seconds() if given > _NO_TIME else None
        blocking = not opts.asyncOp and self.coalesced is None
        if len(plan) == 1:
            operation = plan[0].call(timeout=timeout, blocking=blocking)
        else:
            with self.fabric.coalesce(timeout=timeout, blocking=blocking) as operation:
                for step in plan:
                    step.call()
        if blocking:
            for step in plan:
                if step.finish is not None:
                    step.finish()
            return _DONE
        work = Pending([Part(operation, [step.finish for step in plan if step.finish is not None])], result, source)
        if self.coalesced is not None:
            self.coalesced.append(work)
        return work

    # Names of older versions of torch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _flatten(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [t for ts in lists for t in ts]
