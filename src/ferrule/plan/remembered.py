"""Methods whose results are kept with their object."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class remembered(Generic[P, R]):  # noqa: N801 - a decorator
    """Like `functools.cache`, for a method, and as long as its object lives. A copy of the object shares what is known;
    delete the attribute of the copy where it is another's."""

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self._method = method

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, _owner: type) -> Callable[P, R]:
        known: Callable[P, R] = cache(MethodType(self._method, instance))  # type: ignore[assignment]
        vars(instance)[self._name] = known
        return known
