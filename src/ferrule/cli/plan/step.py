"""``ferrule plan --explain-step``: the operations of a rank's step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from ferrule.cli.extras import needs
from ferrule.cli.output import new_table
from ferrule.errors import ConfigError
from ferrule.model import read_configuration
from ferrule.plan import BUILT_IN_ENGINE, Plan, Runtime

if TYPE_CHECKING:
    from ferrule.engine.rank.step.explain import Part, StepText

LAYERS_NAMED = 4
"""Runs of layers up to this number are named one by one."""


def check_engine(runtime: Runtime) -> None:
    """Raises `ConfigError` for an engine whose steps are not known."""
    if runtime is not BUILT_IN_ENGINE:
        raise ConfigError(f"--explain-step is of the built-in engine: leave --runtime {runtime.name} out")


def steps_of(model: str, plan: Plan) -> list[StepText]:
    """The step of each stage's first rank; its other ranks do the same with their parts."""
    with needs("engine", "plan --explain-step"):
        from ferrule.engine.rank.step.explain import explain_step
        from ferrule.engine.source import config_of, read_config, read_seeing

        found = read_configuration(model)
        if isinstance(found, Path):
            config = read_config(found)
            config = read_seeing(found) or config
        else:
            config = config_of(found, model)
        return [explain_step(config, shard) for shard in plan.shards if shard.place == 0]


def step_text(step: StepText) -> Iterator[RenderableType]:
    """A sentence, and a table of the operations."""
    shard = step.shard
    share = "" if shard.parts == 1 else f", a part of {shard.parts} of each"
    if shard.context > 1:
        share = f"; each attention is to this rank's pages, and {shard.context} ranks merge what comes of theirs"
    title = f"the step of rank {shard.rank}: layers {shard.first_layer} to {shard.last_layer - 1}{share}"
    if step.unfit is not None:
        yield Text(f"{title}; through transformers' modules: {step.unfit}")
        return
    together = f", {step.collectives} of them with all ranks of the stage" if step.collectives else ""
    yield Text(f"{title}; {step.operations} operations{together}")
    yield ""
    table = new_table("operation", "from", "to", "what", ">weights (M)", padding=(0, 1), pad_edge=False)
    for part in step.parts:
        if part.layers:
            table.add_row("", "", "", Text(_layers(part), style="bold"))
        for line in part.lines:
            read = f"{line.numbers / 1e6:.2f}" if line.operation in ("product", "heads", "experts") else ""
            table.add_row(line.operation, line.source, line.to, line.what, read)
    table.add_row(Text("all", style="bold"), "", "", "read for one token", f"{step.numbers / 1e6:.2f}")
    yield table


def _layers(part: Part) -> str:
    if len(part.layers) == 1:
        return f"layer {part.layers[0]}"
    return f"each of {len(part.layers)} layers: {_runs(part.layers)}"


def _runs(numbers: Sequence[int]) -> str:
    """``numbers``, which rise, as runs: 0-3, 5."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [f"{first}-{last}" if last > first else str(first) for first, last in found]
    more = len(shown) - LAYERS_NAMED
    return ", ".join(shown if more <= 1 else [*shown[:LAYERS_NAMED], f"and {more} more"])
