"""Prompts on ranks of their own, for `ferrule serve --prefill-tp` and for a `--plan` that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.engine.device_names import CPU, parse_devices
from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.cli.serving.front import Front
    from ferrule.engine import Engine, EngineOptions
    from ferrule.engine.host.prepare import PlanChoice
    from ferrule.engine.host.speed import Speed
    from ferrule.plan import SavedPlan

MOST_RANKS = 1024
AUTO = 0
"""Of `parse_prefill`: as the planner says."""
ONE_MACHINE = "--prefill-tp auto: on one machine the same ranks compute prompts and answers; say how many if not"


def parse_prefill(text: str | None) -> int | None:
    """How many ranks for prompts were asked for; `AUTO`; or None: none. Raises `ConfigError`."""
    if text is None or text == "off":
        return None
    if text == "auto":
        return AUTO
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RANKS:
        raise ConfigError(f"--prefill-tp {text!r} is neither a number from 1 to {MOST_RANKS} nor auto nor off")
    return int(text)


def hosts_apart(prefill: int | None, given: str | None, hosts: str | None, *, cluster: bool) -> tuple[str, ...] | None:
    """Names of ``--prefill-hosts``, beside those of ``--hosts``. Raises `ConfigError` where they do not go with the
    other flags."""
    if given is None:
        if cluster and prefill not in (None, AUTO):
            raise ConfigError(
                f"--prefill-tp {prefill} in a cluster: say on which hosts, such as --prefill-hosts A,B, or let the "
                "planner choose: --prefill-tp auto"
            )
        return None
    if not cluster:
        raise ConfigError("--prefill-hosts needs a cluster: ferrule up")
    if prefill in (None, AUTO):
        raise ConfigError("--prefill-hosts is for --prefill-tp N: say how many ranks compute prompts there")
    names = tuple(each.strip() for each in given.split(",") if each.strip())
    if both := sorted(set(names) & {each.strip() for each in (hosts or "").split(",")}):
        raise ConfigError(f"{', '.join(both)}: a host is for prompts or for answers, of --prefill-hosts or of --hosts")
    return names


class Prefill(NamedTuple):
    """Ranks for prompts as they were asked for: how many, `AUTO` or None; on which hosts of a cluster, and devices."""

    ranks: int | None
    hosts: tuple[str, ...] | None
    device: str | None


def prefill_of(
    text: str | None, hosts: str | None, device: str | None, answering: str | None, *, cluster: bool, **others: object
) -> Prefill:
    """By ``--prefill-tp``, ``--prefill-hosts`` and ``--prefill-device``, beside ``--hosts``. ``others``: as of
    `refuse_apart`, with what was given or None. Raises `ConfigError`."""
    ranks = parse_prefill(text)
    refuse_apart(ranks, **{name: value is not None for name, value in others.items()})
    found = Prefill(ranks, hosts_apart(ranks, hosts, answering, cluster=cluster), device)
    check_device(device, ranks)
    return found


def refuse_apart(prefill: int | None, *, plan: bool, replicas: bool, cp: bool) -> None:
    """Raises `ConfigError` where ``--prefill-tp`` was given with what it does not go with."""
    if prefill is None:
        return
    for flag, given in (("--plan", plan), ("--replicas", replicas), ("--cp", cp)):
        if given:
            raise ConfigError(f"--prefill-tp does not go with {flag}: leave one of them out")


def check_device(name: str | None, prefill: int | None) -> None:
    """Raises `ConfigError` where ``name``, of ``--prefill-device``, is no device or of no use."""
    if name is None:
        return
    if prefill in (None, AUTO):
        raise ConfigError("--prefill-device is for --prefill-tp N: say how many ranks compute prompts there")
    parse_devices(name)


def device_apart(given: str | None, saved: SavedPlan | None) -> str | None:
    """Where ranks for prompts compute, as ``given`` or as of a ``saved`` plan; None: as the others."""
    prompts = None if saved is None else saved.prompts
    return given if prompts is None else prompts.device or CPU


def ranks_here(console: Console, prefill: int | None, saved: SavedPlan | None) -> int | None:
    """Ranks for prompts on this machine: so many; `AUTO`: those of the ``saved`` plan; None: none."""
    if saved is not None:
        return None if saved.prompts is None else AUTO
    if prefill != AUTO:
        return prefill
    console.print(ONE_MACHINE, style="dim", highlight=False)
    return None


def run_apart(
    console: Console,
    options: EngineOptions,
    prefill: int,
    device: str | None,
    choose_plan: PlanChoice | None,
    *,
    front: Front,
    **served: Any,
) -> None:
    """Serve one model on this machine until it is stopped, with ``prefill`` ranks for prompts (0: those of the plan
    that ``choose_plan`` chooses) on ``device`` (None: on that of ``options``), beside those that ``options`` ask for.
    ``served``: further options of `Front.run`."""
    from ferrule.cli.display import Loading
    from ferrule.engine.apart.start import start_apart
    from ferrule.engine.host.speed import speed_of

    async def load() -> tuple[Engine, Speed | None]:
        with Loading(console) as loading:
            engine = await start_apart(options, prefill, loading, device=device, choose_plan=choose_plan)
            return engine, await speed_of(engine, None)

    front.run_engine(console, load, **served)
