"""Common fields of all objects of one answer: its id, when it was made, by which model and which configuration."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from ferrule import __version__
from ferrule.engine import Engine
from ferrule.serve.openai.objects import AnswerBody, ChatChoice, TextChoice, Usage


@dataclass(frozen=True)
class Identity:
    """``created``: seconds since 1970. ``fingerprint`` changes when the same seed may give another text."""

    id: str
    created: int
    model: str
    fingerprint: str

    def body(
        self, kind: str, choices: Sequence[ChatChoice | TextChoice], usage: Usage | UnsetType | None = UNSET
    ) -> AnswerBody:
        return AnswerBody(self.id, kind, self.created, self.model, self.fingerprint, choices, usage)


def new_identity(engine: Engine, prefix: str) -> Identity:
    """An identity for an answer given now. ``prefix`` tells the kinds of ids apart, such as ``chatcmpl``."""
    return Identity(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), engine.name, system_fingerprint(engine))


def system_fingerprint(engine: Engine) -> str:
    """A short name for the version, the model and its split: each split adds its partial sums in its own order."""
    plan = engine.plan
    told = f"{__version__}/{engine.name}/{engine.created}/{plan.strategy}/{plan.tensor}x{plan.pipeline}x{plan.context}"
    return f"fp_{hashlib.sha256(told.encode()).hexdigest()[:10]}"
