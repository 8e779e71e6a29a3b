"""Engine of a model that `ferrule serve` loads: the built-in one, or a guest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.cli.serving.front import Front
    from ferrule.cluster.home import ClusterHome
    from ferrule.engine import Engine, EngineOptions
    from ferrule.engine.guests.guest import Guest
    from ferrule.engine.guests.members import Members
    from ferrule.engine.host.speed import Speed

AUTO, OWN = "auto", "ferrule"
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="Which engine runs the model: auto, ferrule (the built-in one), llama.cpp or vllm; see `ferrule engines`.",
    ),
]


TrustCables = Annotated[
    bool,
    typer.Option("--trust-cables", help="Of vLLM on several hosts: let it listen there without a key."),
]


def refuse_guest(engine: str, where: str, cure: str = "leave it out") -> None:
    """Raises `ConfigError` where a guest was asked for ``where`` only the built-in engine serves."""
    if engine not in (AUTO, OWN):
        raise ConfigError(f"--engine {engine} is not for {where} yet: {cure}")


def guest_for(
    console: Console, engine: str, options: EngineOptions, given: Mapping[str, object], *, demo: bool
) -> Guest | None:
    """The guest that is to run a model, and a line that says why; None: the built-in engine does. ``given``: flags that
    only that has, with their values. Raises `ConfigError` and `ModelError`."""
    if engine == OWN:
        return None
    from ferrule.engine.guests.choice import choose, facts_of
    from ferrule.engine.guests.registry import GUESTS, guest_named
    from ferrule.engine.guests.start import FLAGS, changed, found

    own = [flag for flag, value in given.items() if value not in (None, False)]
    if engine != AUTO:
        guest = guest_named(engine)
        found(guest)
        if own:
            raise ConfigError(f"{own[0]} is for the built-in engine alone: leave it or --engine {engine} out")
        return guest
    installed = [name for name, guest in GUESTS.items() if guest.find() is not None]
    if demo or not installed:
        return None
    facts = facts_of(options.model, deep="llama.cpp" in installed)
    choice = choose(facts, options.device, installed, own)
    if choice.engine == OWN:
        return None
    guest = GUESTS[choice.engine]
    lacks = [FLAGS[name] for name in changed(options) if name not in guest.options]
    if lacks:
        return None
    console.print(f"engine {choice.engine}: {choice.why}", highlight=False, markup=False, soft_wrap=True)
    return guest


def members_of(home: ClusterHome | None, hosts: str | None, engine: str, *, trusted: bool) -> Members | None:
    """Those of the cluster's hosts that ``--hosts`` names for the ranks of a guest; None where it has no say.
    ``trusted``: it may listen there without a key. Raises `ConfigError` and `ClusterError`."""
    if home is None or hosts is None or engine in (AUTO, OWN):
        return None
    from ferrule.cluster.client import ask
    from ferrule.cluster.messages import GetStatus
    from ferrule.engine.guests.members import Members
    from ferrule.engine.guests.registry import guest_named

    named = [each.strip() for each in hosts.split(",")]
    if len(named) > 1 and guest_named(engine).listens_openly and not trusted:
        raise ConfigError(
            f"{engine} on several hosts listens on their cables without a key, and whoever reaches these ports may run "
            "programs there: say --trust-cables if only these hosts are on the cables, or leave --engine out"
        )
    up = {each.name: each for each in ask(home, GetStatus()).hosts if each.is_up}
    away = [each for each in named if each not in up]
    if away:
        raise ConfigError(f"--hosts: {away[0]} is no host of the cluster {home.name!r} that is up; see ferrule status")
    return Members(home, tuple(None if up[each].host == home.settings.host else up[each] for each in named))


def run_guest(
    console: Console, guest: Guest, options: EngineOptions, front: Front, members: Members | None, **served: Any
) -> None:
    """Serve one model by a guest until it is stopped, its ranks on ``members`` of the cluster, or all here.
    ``served``: further options of `Front.run`."""
    from dataclasses import replace

    from ferrule.cli.display import Loading
    from ferrule.engine.guests.start import start_guest
    from ferrule.engine.host.speed import speed_of

    if members is not None and options.ranks == 1:
        options = replace(options, pipeline=len(members.hosts))

    async def load() -> tuple[Engine, Speed | None]:
        with Loading(console) as loading:
            engine = await start_guest(guest, options, loading, members=members)
            return engine, await speed_of(engine, None)

    front.run_engine(console, load, **served)
