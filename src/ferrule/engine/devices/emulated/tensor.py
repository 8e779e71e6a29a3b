"""Tensors of an emulated accelerator: on a device of their own, in memory that the host cannot read.

Each wraps a host tensor (`EmulatedTensor.cells`), which stands for device memory and is written when the work that was
started is done (`timeline`). Shapes are found by running each operation on torch's meta device first. What torch
refuses on a real device is refused here, too: a host tensor beside one of the device's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ferrule.engine.devices.emulated.machine import Machine, machine, poison
from ferrule.engine.devices.emulated.module import Module

NAME = "emulated"
aten = torch.ops.aten
_READS = {aten._local_scalar_dense.default, aten.equal.default}
"""Operations whose results are numbers of the host: it waits for them."""
_RANGES = {"": aten.arange.default, ".start": aten.arange.start, ".start_step": aten.arange.start_step}
_VIEWS = {aten._unsafe_view.default}
"""Views beside those that say so."""
_COLLECTIVES = ("_c10d_functional", "c10d_functional")
_TAKE_HOST_INDEX = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


class EmulatedTensor(Tensor):
    """A tensor in the memory of ``owner``."""

    cells: Tensor
    owner: Machine
    whole: EmulatedTensor | None
    """Base tensor, if it is a view."""
    captured: bool
    """Whether it was made while work was captured: if it is no view, in memory of the graphs' pool."""

    @staticmethod
    def __new__(cls, cells: Tensor, owner: Machine, whole: EmulatedTensor | None = None) -> EmulatedTensor:
        with torch.inference_mode(False):  # a view must be of the same kind as what it looks at, wherever that was made
            made: EmulatedTensor = Tensor._make_wrapper_subclass(
                cls,
                cells.shape,
                strides=cells.stride(),
                storage_offset=cells.storage_offset(),
                dtype=cells.dtype,
                device=torch.device(NAME, owner.index),
            )
        made.cells, made.owner, made.whole = cells, owner, whole
        made.captured = owner.capturing is not None
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"EmulatedTensor({list(self.shape)}, {self.dtype}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        owner = next(leaf.owner for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, EmulatedTensor))
        owner.check()
        if owner.capturing is not None:
            for whole in (_whole(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, EmulatedTensor)):
                if not whole.captured:
                    owner.capturing.reads(whole)
        if func.namespace in _COLLECTIVES:
            return _collective(func, args, kwargs)
        if func is aten._fused_sdp_choice.default:
            return 0  # attention by single operations
        if func is aten._to_copy.default:
            return _to_copy(owner, *args, **kwargs)
        if func is aten.copy_.default:
            return _copy(owner, *args, **kwargs)
        _check_devices(func, args, kwargs, owner)
        returned = [each.alias_info for each in func._schema.returns]
        if func in _VIEWS or (returned and all(alias is not None and not alias.is_write for alias in returned)):
            found = func(*_cells(args), **_cells(kwargs))
            if _looks_at(args[0], found):  # a view needs no numbers; what could not be one was copied
                return _wrapped(found, args[0])
        owner.launches += 1
        if func in _READS:
            owner.to_host += 1
            owner.wait(f"{func} gives the host a number")
            return func(*_cells(args), **_cells(kwargs))
        written = _written(func, args, kwargs)
        if written:
            given, named = _cells(args), _cells(kwargs)
            owner.start(lambda: func(*given, **named))
            return None if not returned else written[0] if len(returned) == 1 else tuple(written)
        return _computed(func, args, kwargs, owner)


def _collective(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation that calls a process group and starts nothing itself. By its storage torch knows what a tensor
    is to be waited for, and here views have others than what they look at."""
    waiting = func.overloadpacket.__name__ == "wait_tensor"
    given = (_whole(args[0]),) if waiting else args
    found = func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *given, **kwargs)
    return args[0] if waiting else found


def _whole(given: EmulatedTensor) -> EmulatedTensor:
    return given if given.whole is None else given.whole


def _histogram(given: Tensor, *bounds: Any) -> Tensor:
    return torch.histc(given.float(), *bounds).to(given.dtype)


_KERNELS: dict[Any, Callable[..., Any]] = {aten.histc.default: _histogram}
"""Kernels of accelerators for types that torch's own kernel for processors does not take."""


def _grouped_product(rows: Tensor, matrices: Tensor, *_: Any, **__: Any) -> Tensor:
    return rows.new_empty((rows.shape[0], matrices.shape[-1]))


_SHAPES: dict[Any, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_product}
"""Results, without numbers, of what the meta device refuses for some types."""


def _to_copy(owner: Machine, source: Tensor, *, non_blocking: bool = False, **kwargs: Any) -> Tensor:
    target = torch.device(kwargs.pop("device", None) or source.device)
    if target.type == NAME:
        if target.index not in (None, owner.index):
            raise RuntimeError(f"{source.device} cannot copy to {target}: they are different devices")
        owner.launches += 1
        return _computed(aten._to_copy.default, (source,), kwargs, owner)  # type: ignore[no-any-return]
    made = poison(torch.empty(source.shape, dtype=kwargs.get("dtype") or source.dtype))
    return _copy(owner, made, source, non_blocking)


def _copy(owner: Machine, into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Between the host and the device a copy that may not be waited for reads and writes pinned host memory later;
    any other host memory before this returns."""
    if isinstance(into, EmulatedTensor) and isinstance(source, EmulatedTensor):
        if into.owner is not source.owner:
            raise RuntimeError(f"{source.device} cannot copy to {into.device}: they are different devices")
        owner.launches += 1
    elif isinstance(into, EmulatedTensor):
        owner.to_device += 1
    else:
        owner.to_host += 1
    target, given = (each.cells if isinstance(each, EmulatedTensor) else each for each in (into, source))
    host = given if given is source else target
    owner.start(lambda: target.copy_(given))
    if (target is into or given is source) and not (non_blocking and owner.is_pinned(host)):
        owner.wait("a copy that the host waits for")
    return into


def _check_devices(func: Any, args: Any, kwargs: Any, owner: Machine) -> None:
    for leaf in tree_leaves((args, kwargs)):
        if not isinstance(leaf, Tensor) or (isinstance(leaf, EmulatedTensor) and leaf.owner is owner):
            continue
        if not isinstance(leaf, EmulatedTensor) and leaf.dim() == 0:
            continue  # a number
        if not isinstance(leaf, EmulatedTensor) and func in _TAKE_HOST_INDEX and leaf is not args[0]:
            owner.to_device += 1
            owner.wait("indices in host memory")
            continue
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, but found at least two devices, "
            f"{NAME}:{owner.index} and {leaf.device}"
        )


def _looks_at(given: Any, found: Any) -> bool:
    """Whether all of ``found`` lies in the memory of ``given``."""
    here = [each.cells.untyped_storage().data_ptr() for each in tree_leaves(given) if isinstance(each, EmulatedTensor)]
    return all(each.untyped_storage().data_ptr() in here for each in tree_leaves(found))


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that ``func`` writes to."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            if value is not None:
                found.append(value)
    return found


def _computed(func: Any, args: Any, kwargs: Any, owner: Machine) -> Any:
    """Start what makes new tensors; these are full of poison until it is done."""
    try:
        shapes = _SHAPES.get(func, func)(*_meta(args), **_meta(kwargs))
    except (NotImplementedError, RuntimeError):  # how large the result is depends on numbers, or it is refused at all
        owner.wait(f"{func} makes a tensor whose size depends on numbers")
        found = func(*_cells(args), **_cells(kwargs))
        return tree_map(lambda each: _held(each, owner) if isinstance(each, Tensor) else each, found)

    def made_of(shape: Any) -> Any:
        if not isinstance(shape, Tensor):
            return shape
        return _fresh(shape, owner)

    made = tree_map(made_of, shapes)
    into = [each.cells for each in tree_leaves(made) if isinstance(each, EmulatedTensor)]
    given, named, kernel = _cells(args), _cells(kwargs), _KERNELS.get(func, func)

    def work() -> None:
        results = [each for each in tree_leaves(kernel(*given, **named)) if isinstance(each, Tensor)]
        for target, result in zip(into, results, strict=True):
            if result.numel():  # kernels leave out what only others need, such as statistics that are not trained
                target.copy_(result)

    owner.start(work)
    return made


def _fresh(like: Tensor, owner: Machine) -> EmulatedTensor:
    """Memory for a tensor of this shape and type."""
    return EmulatedTensor(owner.allocate(like.shape, like.stride(), like.dtype), owner)


def _held(found: Tensor, owner: Machine) -> EmulatedTensor:
    made = _fresh(found, owner)
    owner.start(lambda: made.cells.copy_(found))
    return made


def _wrapped(found: Any, given: EmulatedTensor) -> Any:
    """Views of ``given``."""

    def one(each: Any) -> Any:
        return EmulatedTensor(each, given.owner, _whole(given)) if isinstance(each, Tensor) else each

    return tree_map(one, found)


def _cells(given: Any) -> Any:
    """The arguments as host tensors, on the host."""
    return tree_map(lambda each: each.cells if isinstance(each, EmulatedTensor) else _there(each, "cpu"), given)


def _meta(given: Any) -> Any:
    def one(each: Any) -> Any:
        if isinstance(each, EmulatedTensor) or (isinstance(each, Tensor) and each.dim() > 0):
            return torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta")
        return _there(each, "meta")

    return tree_map(one, given)


def _there(each: Any, device: str) -> Any:
    return torch.device(device) if isinstance(each, torch.device) and each.type == NAME else each


def _owner(device: torch.device | None) -> Machine:
    return machine((device.index if device is not None else None) or 0)


def _empty(size: Iterable[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return _fresh(torch.empty(tuple(size), dtype=dtype, device="meta"), _owner(device))


def _empty_strided(
    size: Iterable[int], stride: Iterable[int], *, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    shape = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device="meta")
    return _fresh(shape, _owner(device))


def _counted(func: Any) -> Callable[..., Tensor]:
    """A range of numbers, whose kernel otherwise gives its result a size that a wrapper cannot change."""

    def made(*args: Any, device: Any = None, pin_memory: Any = None, layout: Any = None, **kwargs: Any) -> Tensor:
        owner = _owner(device)
        owner.launches += 1
        found = _fresh(func(*args, device="meta", **kwargs), owner)
        owner.start(lambda: found.cells.copy_(func(*args, **kwargs)))
        return found

    return made


def register() -> torch.library.Library:
    """Make torch know the device. Once per process; the result must be kept."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    kernels: dict[str, Callable[..., Any]] = {"empty.memory_format": _empty, "empty_strided": _empty_strided}
    kernels["_copy_from"] = lambda source, into, non_blocking=False: _copy(into.owner, into, source, non_blocking)
    kernels |= {f"arange{each}": _counted(func) for each, func in _RANGES.items()}
    for name, kernel in kernels.items():
        library.impl(name, kernel, "PrivateUse1")  # type: ignore[no-untyped-call]
    return library
