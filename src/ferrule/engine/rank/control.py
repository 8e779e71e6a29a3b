"""The rank's end of the line to the process that started it (`ferrule.process.lifeline`): JSON, one message a line.

Down, first, to a rank that was started without: ``{"op": "start", "options"}``, `RankOptions` as JSON. To each, when
all have said that they are here: ``{"op": "meet"}``. To the driver:
``{"op": "add", "id", "prompt", "made", "params"}``, where ``made`` are the tokens of its answer that were made before a
crash; ``{"op": "cancel", "id"}``.
Up: ``{"event": "alive" | "here" | "progress" | "ready" | "tokens" | "load" | "error", ...}``. The other end is
`ferrule.engine.host.ranks`.
"""

from __future__ import annotations

import json
import select
import socket
from dataclasses import asdict
from typing import Any

from ferrule.engine.options import RankOptions
from ferrule.engine.types import Progress, RankInfo, SamplingParams
from ferrule.errors import EngineError
from ferrule.process.lifeline import Lifeline

CHUNK = 1 << 16
SPARE_PERIOD = 60.0
"""Seconds between the looks of a spare rank at whether it is wanted; both the start and the end wake it at once."""


class Control:
    """``line``: to the process that started this one."""

    def __init__(self, line: Lifeline) -> None:
        self._line = line
        self._received = b""
        self._early: list[dict[str, Any]] = []
        self._poll = select.poll()  # unlike select it takes descriptors of any number
        self._poll.register(line.socket, select.POLLIN)

    def send(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, separators=(",", ":"))
        try:
            self._line.send(line.encode() + b"\n")
        except OSError as error:
            raise EngineError(f"the process that started this rank is gone: {error}") from None

    def progress(self, progress: Progress) -> None:
        self.send("progress", **asdict(progress))

    def ready(self, info: RankInfo, cache_tokens: int) -> None:
        self.send("ready", info=asdict(info), cache_tokens=cache_tokens)

    def options(self) -> RankOptions:
        """Wait for what this rank is to do: as long as the process that started it lives, since it may be a spare."""
        return RankOptions.from_json(self._next()["options"])

    def meet(self) -> None:
        """Say that this rank has done its imports, and wait until all have: only then does their time to meet begin."""
        self.send("here")
        self._next()

    def _next(self) -> dict[str, Any]:
        while not self._early:
            self._early = self.messages(SPARE_PERIOD)
        return self._early.pop(0)

    def messages(self, wait: float) -> list[dict[str, Any]]:
        """What has come down, after at most ``wait`` seconds. Raises `EngineError` when the other end is gone."""
        if not self._poll.poll(wait * 1000):
            return []
        chunk = self._line.socket.recv(CHUNK)
        if not chunk:
            raise EngineError("the process that started this rank is gone")
        *lines, self._received = (self._received + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


def send_options(connection: socket.socket, options: RankOptions) -> None:
    """Tell a rank that waits what it is to do: the other end of `Control.options`."""
    message = {"op": "start", "options": options.to_json()}
    connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def params_to_json(params: SamplingParams) -> dict[str, Any]:
    fields = asdict(params)
    fields["logit_bias"] = list(params.logit_bias.items())
    return fields


def params_from_json(fields: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        **{
            **fields,
            "logit_bias": {int(token): float(bias) for token, bias in fields["logit_bias"]},
            "stop_token_ids": tuple(fields["stop_token_ids"]),
        }
    )
