"""Several whole copies of one model on this machine, for `ferrule serve --replicas`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule.cluster.desired import MOST_REPLICAS
from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.cli.serving.front import Front
    from ferrule.engine import Engine, EngineOptions
    from ferrule.engine.host.prepare import PreparedModel
    from ferrule.engine.host.speed import Speed
    from ferrule.engine.replicas.start import ReplicaPlace

AUTO = "auto"
ReplicasFlag = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        metavar="N|auto",
        help="Whole copies of the model behind one address; auto: as many as the planner says.",
    ),
]


def parse_replicas(text: str | None) -> int | None:
    """How many replicas were asked for; 0: as many as the planner finds best; None: one, without a word of them."""
    if text is None or text == "1":
        return None
    if text == AUTO:
        return 0
    if not text.isdecimal() or not 2 <= int(text) <= MOST_REPLICAS:
        raise ConfigError(f"--replicas {text!r} is neither a number from 1 to {MOST_REPLICAS} nor {AUTO}")
    return int(text)


def run_replicas(
    console: Console, options: EngineOptions, count: int, *, split: bool, front: Front, **served: Any
) -> None:
    """Until it is stopped. ``count``: 0 for as many as are best. ``served``: further options of `Front.run`."""
    from ferrule.cli.display import Loading
    from ferrule.engine.host.prepare import in_background, prepared
    from ferrule.engine.host.speed import speed_of
    from ferrule.engine.replicas.start import start_replicas

    async def load() -> tuple[Engine, Speed | None]:
        with Loading(console) as loading:
            model = await prepared(options, on_progress=loading)
        model, places = await in_background(lambda: places_of(console, options, model, count, split=split))
        if not count:
            console.print(f"--replicas auto: {len(places)} by the planner's count", style="dim", highlight=False)
        with Loading(console) as loading:
            engine = await start_replicas(model, places, loading)
            return engine, await speed_of(engine, None)

    front.run_engine(console, load, **served)


def places_of(
    console: Console, options: EngineOptions, model: PreparedModel, count: int, *, split: bool
) -> tuple[PreparedModel, list[ReplicaPlace]]:
    """The places, and ``model`` with the plan of each copy on processors. This machine is measured, if need be."""
    from ferrule.cli.serving.devices import devices_of, measure_of
    from ferrule.cli.serving.this_machine import ThisMachine
    from ferrule.engine.device_names import AUTO as ANY
    from ferrule.engine.device_names import CPU, parse_device, parse_devices
    from ferrule.engine.replicas.here import on_devices, on_named_devices, on_processors

    names = parse_devices(options.device)
    if set(names) == {CPU}:
        copies = count or 1  # which share one memory: another one would read all weights once more for each token
        if not split:
            machine = ThisMachine(console, options.threads, copies)
            model = replace(model, plan=machine.plan(model.spec, before_measuring=lambda: None))
        return model, on_processors(options, copies, model.spec, model.plan)
    if split and all(name == CPU or (name != ANY and parse_device(name)[1] is not None) for name in names):
        return model, on_named_devices(options, count or None, names)
    devices = devices_of(console, options, lambda: None)
    if not devices:
        raise ConfigError(
            "replicas need devices of their own, and those here are not known; name them one by one, with --tp: "
            "--replicas 2 --tp 1 --device cuda:0,cuda:1"
        )
    if split:
        return model, on_named_devices(options, count or None, [device.name for device in devices])
    return model, on_devices(options, count or None, model.spec, devices, measure_of(options))
