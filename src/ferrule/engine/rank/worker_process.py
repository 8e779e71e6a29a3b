"""The program of a rank's process, and its benchmark, without the imports that no rank has a use for.

transformers' models import torch's compiler and its distributed tensors, and SciPy and Accelerate where they are
installed: a third of the processor time of a rank's start. Ranks compile nothing by `torch.compile`, and cut tensors
themselves.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.compiler
import torch.distributed
from torch._compile import _disable_dynamo
from transformers.utils import import_utils

from ferrule.engine.import_structure import import_models

__all__ = ["main", "step_seconds"]

_COMPILER = "torch._dynamo"
_OF_MASKS = f"{_COMPILER}._trace_wrapped_higher_order_op"
_UNSET = object()


def _unmarked(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return _unmarked if function is None else function


class _Later(ModuleType):
    """A module of the compiler that is imported once more is asked of it than what is here: marks of functions."""

    allow_in_graph = assume_constant_result = staticmethod(_unmarked)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for each in (_COMPILER, _OF_MASKS):
            if isinstance(sys.modules.get(each), _Later):
                del sys.modules[each]
        return getattr(import_module(self.__name__), name)


@contextmanager
def _instead(names: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """``value`` under a name, unless an import sets another one meanwhile."""
    before = names.get(name, _UNSET)
    names[name] = value
    try:
        yield
    finally:
        if names.get(name) is value:
            if before is _UNSET:
                del names[name]
            else:
                names[name] = before


def _decide_what_is_absent() -> None:
    """Let transformers ask anew, and remember: what it imports now must fit what it believes from then on."""
    absent = ("is_scipy_available", "is_accelerate_available", "is_torch_distributed_available")
    with (
        _instead(vars(import_utils), "_is_package_available", lambda name, return_version=False: (False, "0")),
        _instead(vars(torch.distributed), "is_available", lambda: False),
    ):
        for name in absent:
            asked: Any = getattr(import_utils, name, None)
            if hasattr(asked, "cache_clear"):
                asked.cache_clear()  # `import transformers` has asked already
                asked()


@contextmanager
def _without_compiler() -> Iterator[None]:
    compiler, of_masks = _Later(_COMPILER), _Later(_OF_MASKS)
    compiler.__path__ = []
    # A mode of torch, entered where a mask is made by `vmap`.
    vars(of_masks)["TransformGetItemToIndex"] = lambda: import_module(_OF_MASKS).TransformGetItemToIndex()
    with ExitStack() as stack:
        if _COMPILER not in sys.modules:
            stack.enter_context(_instead(vars(torch), "_dynamo", compiler))
            for module in (compiler, of_masks):
                stack.enter_context(_instead(sys.modules, module.__name__, module))
            for name in ("disable", "allow_in_graph"):
                stack.enter_context(_instead(vars(torch.compiler), name, _unmarked))
        yield


def _keep_from_asking() -> None:
    """torch's operations on tensors without memory import the compiler when they are first called, to be left alone by
    it, and remember the function that it gives them: it shall be their own."""
    asks = _disable_dynamo(lambda: None).__code__
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__ is asks:
            cells = dict(zip(asks.co_freevars, each.__closure__ or (), strict=False))
            own = cells["fn"].cell_contents
            vars(own).setdefault("__dynamo_disable", own)


_decide_what_is_absent()
_keep_from_asking()
import_models()
with _without_compiler():
    import_module("transformers.masking_utils")
    import_module("sympy")  # as torch's operations without memory do when a model is built: now, so that it is counted
    from ferrule.engine.rank.stepping import step_seconds
    from ferrule.engine.rank.worker import main
