"""The flags that choose a model and its split, as `serve` and `generate` share them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ferrule.engine import EngineOptions

DEMO = "demo"
DEMO_RANKS = 2
"""The embedded model would fit many times over; it is split so that there is something to see."""


class Dtype(StrEnum):
    """What the model computes in; ``auto`` is what its weights were saved in."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


Tp = Annotated[
    int | None, typer.Option("--tp", min=1, metavar="N", help="Tensor parallel: cut every layer into N ranks' parts.")
]
Pp = Annotated[
    int | None,
    typer.Option("--pp", min=1, metavar="N", help="Pipeline parallel: cut the stack of layers into N stages."),
]
DtypeFlag = Annotated[
    Dtype, typer.Option("--dtype", help="What to compute in; auto is what the weights were saved in.")
]
MaxContext = Annotated[
    int | None,
    typer.Option("--max-context", min=1, metavar="TOKENS", help="Most tokens of prompt and answer together."),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, metavar="N", help="CPU threads per rank; the default shares the cores."),
]
SelfTest = Annotated[
    bool,
    typer.Option(
        "--self-test/--no-self-test",
        envvar="FERRULE_SELF_TEST",
        help="Compare a split model with the same model in one piece before it is ready.",
    ),
]


Encrypt = Annotated[
    bool | None,
    typer.Option(
        "--encrypt/--no-encrypt",
        help="Encrypt what ranks say over cables (TLS 1.3); if left out, as FERRULE_ENCRYPT says on each host.",
    ),
]


def engine_options(
    model: str,
    *,
    tp: int | None,
    pp: int | None,
    dtype: Dtype,
    max_context: int | None,
    threads: int | None,
    self_test: bool,
    name: str | None = None,
    standby: bool = False,
    encrypt: bool | None = None,
) -> EngineOptions:
    """The flags as the engine takes them."""
    from ferrule.engine import EngineOptions

    return EngineOptions(
        model=model,
        tensor=tp or 1,
        pipeline=pp or 1,
        dtype=dtype.value,
        max_context=max_context,
        threads=threads,
        name=name,
        self_test=self_test,
        standby=standby,
        encrypt=encrypt,
    )
