"""Structs as JSON responses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from fastapi.responses import Response


def respond(
    value: msgspec.Struct | Sequence[msgspec.Struct], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """``value`` as a JSON response."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")
