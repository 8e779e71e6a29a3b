"""Display of `serve` and `generate` while a model loads, and of `serve` when it is ready."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ferrule.cli.output import new_table
from ferrule.secure import write_address
from ferrule.units import format_bytes, format_number

if TYPE_CHECKING:
    from ferrule.engine import Engine, Progress, RankInfo
    from ferrule.engine.host.speed import Speed
    from ferrule.plan import Plan, Shard
    from ferrule.serve.http.tls import ServerTls


Way = Literal["chat/completions", "completions", "embeddings"]
_ASKED: dict[Way, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hello!"}]},
    "completions": {"prompt": "Once upon a time"},
    "embeddings": {"input": "Once upon a time"},
}


class Loading:
    """Shows how far each rank is, from the engine's progress events: bars on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phases: dict[str, str] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars: Bars | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
            self._bars = Bars(*columns, console=console, transient=True)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        if self._bars is not None:
            self._move(self._bars, progress)
        elif self._phases.get(progress.who) != progress.phase:
            amount = f" {format_bytes(progress.total)}" if progress.total else ""
            self._console.print(f"{progress.who}: {progress.phase}{amount}", soft_wrap=True)
        self._phases[progress.who] = progress.phase

    def _move(self, bars: Bars, progress: Progress) -> None:
        title = f"{progress.who}: {progress.phase}"
        if progress.who not in self._tasks:
            self._tasks[progress.who] = bars.add_task(title, total=None, amount="")
        task = self._tasks[progress.who]
        if progress.total:
            amount = f"{format_bytes(progress.done)} of {format_bytes(progress.total)}"
            bars.update(task, description=title, completed=progress.done, total=progress.total, amount=amount)
        else:
            bars.update(task, description=title, amount="")


def show_ready(
    console: Console,
    engine: Engine,
    host: str,
    port: int,
    *,
    with_key: bool,
    tls: ServerTls | None = None,
    speed: Speed | None = None,
) -> None:
    """Print where the model is served, how it is split and how fast it is, and a command to try it, to be pasted."""
    url = base_url(host, port, tls)
    title = Text.assemble((engine.name, "bold"), " is served at ", (f"{url}/v1", "bold cyan"))
    from ferrule.plan import split_flags

    plan = engine.plan
    same = len({stage.width for stage in plan.stages}) == 1
    flags = f"{split_flags(plan)}, " if same else ""
    how = Text(f"{plan.strategy}: {flags}{plan.layers} layers; {plan.reason}")
    told = [] if speed is None else [Text(speed_text(speed))]
    if engine.adapters:
        told.append(Text(f"adapters: {', '.join(f'{engine.name}:{each}' for each in engine.adapters)}"))
    for reason in sorted({info.unshared for info in engine.ranks if info.unshared}):
        told.append(Text(f"no prefix cache: {reason} cannot share what was computed of a prompt"))
    for reason in sorted({info.unguessed for info in engine.ranks if info.unguessed}):
        told.append(Text(f"no speculation: {reason} cannot take back what a wrong guess left"))
    told += [
        Text(f"rank {info.rank} reads weights with every token: {info.streamed}")
        for info in engine.ranks
        if info.streamed
    ]
    tables = [plan_table(each.plan, each.ranks) for each in _copies(engine)]
    if len(tables) > 1:
        title.append(", with ranks for prompts" if _is_apart(engine) else f", by {len(tables)} replicas")
    console.print(Panel(Group(title, how, *tables, *told), title="ferrule", expand=False))
    show_curl(console, url, engine, with_key=with_key, tls=tls)


def _copies(engine: Engine) -> Sequence[Engine]:
    """Its replicas, or itself, with the engine of its prompts if it has one."""
    from ferrule.engine.apart.engine import ApartEngine
    from ferrule.engine.replicas.engine import Replicas

    if isinstance(engine, ApartEngine):
        return [engine, engine.prompts]
    return engine.loaded if isinstance(engine, Replicas) else [engine]


def _is_apart(engine: Engine) -> bool:
    from ferrule.engine.apart.engine import ApartEngine

    return isinstance(engine, ApartEngine)


def show_curl(console: Console, url: str, engine: Engine, *, with_key: bool, tls: ServerTls | None) -> None:
    """Print a command that asks ``engine`` at ``url`` something: outside of any panel and never wrapped, so that it can
    be pasted."""
    ways: dict[bool, Way] = {True: "chat/completions", False: "completions"}
    way = "embeddings" if engine.embedding.only else ways[engine.tokenizer.has_chat_template]
    console.print(
        curl(url, engine.name, way, with_key=with_key, tls=tls),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print("Ctrl-C stops it.", style="dim")


def speed_text(speed: Speed) -> str:
    """Speed that was measured after loading, beside the planner's prediction if there is one."""
    measured = f"{format_number(speed.measured)} tokens/s for one stream"
    if speed.predicted is None:
        return f"{measured}, measured just now"
    between = ""
    if speed.between is not None:
        between = f" ({format_number(speed.between.low)} to {format_number(speed.between.high)})"
    guessed = ", as of another family: this one is not known" if speed.guessed else ""
    return f"{measured}, measured just now; the planner predicted {format_number(speed.predicted)}{between}{guessed}"


def base_url(host: str, port: int, tls: ServerTls | None = None) -> str:
    """URL by which this machine itself reaches the server; with ``tls`` by the first name of the certificate."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    if tls is not None:
        return f"https://{write_address((tls.name or host, port))}"
    return f"http://{write_address((host, port))}"


def curl(url: str, model: str, way: Way, *, with_key: bool, tls: ServerTls | None = None) -> str:
    """A shell command that asks the server something."""
    body = json.dumps({"model": model, **_ASKED[way]}, ensure_ascii=False)
    key = ' -H "Authorization: Bearer $FERRULE_API_KEY"' if with_key else ""
    known = f" --cacert {shlex.quote(str(tls.chain))}" if tls is not None and tls.signs_itself else ""
    headers = f'{known}{key} -H "Content-Type: application/json"'
    return f"curl {shlex.quote(f'{url}/v1/{way}')}{headers} -d {shlex.quote(body)}"


def plan_table(plan: Plan, ranks: tuple[RankInfo, ...]) -> Table:
    """One row per rank: what it holds, where it runs and how it talks to the others."""
    table = new_table(">rank", ">pid", "layers", "part", ">weights", "transport", "device")
    shards = {shard.rank: shard for shard in plan.shards}
    for info in ranks:
        shard = shards[info.rank]
        even = len(set(shard.shares)) == 1
        part = f"{shard.part + 1}/{shard.parts}" if even else f"{shard.shares[shard.part].width:.0%}"
        if shard.context > 1:
            part = f"whole, pages {shard.context_part + 1}/{shard.context}"
        weights, where = format_bytes(info.weight_bytes), info.transports or "none"
        table.add_row(str(info.rank), str(info.pid), layers(shard), part, weights, where, info.device)
    return table


def layers(shard: Shard) -> str:
    """Parts of the rank's stage, such as ``embed, 0–11, head``."""
    held = f"{shard.first_layer}–{shard.last_layer - 1}" if shard.last_layer > shard.first_layer else "none"
    return ", ".join([*(["embed"] if shard.has_embedding else []), held, *(["head"] if shard.has_head else [])])
