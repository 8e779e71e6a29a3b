"""A rank whose program ends says goodbye; only one that dies must look lost to its peers."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrule.fabric.group import Group

open_groups: weakref.WeakSet[Group] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    groups = list(open_groups)
    for group in groups:
        group._native.close()
    for group in groups:
        group._leave()
