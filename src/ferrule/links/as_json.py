"""An inventory as JSON, for other programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from ferrule.links.types import Inventory


def inventory_json(inventory: Inventory) -> dict[str, Any]:
    """All fields under their own names, without `Inventory.seen`, which repeats them as text."""
    fields = dataclasses.asdict(dataclasses.replace(inventory, seen={}))
    del fields["seen"]
    return fields
