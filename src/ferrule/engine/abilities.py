"""Abilities of engines, as data: what of a request each honours. One place checks requests against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ferrule.errors import RequestError

if TYPE_CHECKING:
    from ferrule.engine.types import ImageInput, SamplingParams

FIELDS: Final = (
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "prompt_logprobs",
    "ignore_eos",
    "adapter",
)
"""Of `SamplingParams`: those that not every engine honours. The others every engine does, or the front does for it:
``turn`` orders requests before an engine has them, and ``predicted`` changes nothing but the time."""
CONSTRAINTS: Final = ("json_schema", "regex", "lark", "grammars")
"""Kinds of `Constraint`."""


@dataclass(frozen=True)
class Abilities:
    """What an engine does of what a request may ask for. ``engine``: its name, as ``--engine`` and ``--runtime`` say
    it. ``fields``: of `FIELDS`; ``constraints``: of `CONSTRAINTS`. ``most_logprobs``: the most alternatives that it
    reports beside a token; None: any number. ``images`` and ``embeddings``: whether it takes and makes them."""

    engine: str
    fields: frozenset[str]
    constraints: frozenset[str]
    most_logprobs: int | None = None
    images: bool = False
    embeddings: bool = False

    def check(self, params: SamplingParams, images: Sequence[ImageInput] = ()) -> None:
        """Raises `RequestError`, with the field's name, where a request asks for what this engine does not do."""
        for name in FIELDS:
            if name not in self.fields and getattr(params, name) != getattr(type(params)(), name):
                raise self.lacks(name, name)
        constraint = params.constraint
        if constraint is not None and constraint.kind not in self.constraints:
            raise self.lacks("response_format", f"an answer that follows a constraint of kind {constraint.kind}")
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name)
            if asked is not None and self.most_logprobs is not None and asked > self.most_logprobs:
                raise RequestError(
                    f"{name}: {asked} alternatives are more than the {self.most_logprobs} that the engine "
                    f"{self.engine} reports",
                    param=name,
                    code="unsupported",
                )
        if images and not self.images:
            raise self.lacks("images", "images in a prompt")

    def check_embeddings(self) -> None:
        """Raises `RequestError` where this engine makes no vectors."""
        if not self.embeddings:
            raise self.lacks("input", "embeddings")

    def lacks(self, param: str, what: str) -> RequestError:
        return RequestError(
            f"{what}: the engine {self.engine} does not do this; leave it out, or serve the model with --engine "
            f"{BUILT_IN.engine}",
            param=param,
            code="unsupported",
        )


BUILT_IN: Final = Abilities("ferrule", frozenset(FIELDS), frozenset(CONSTRAINTS), images=True, embeddings=True)
"""The built-in engine does it all."""
