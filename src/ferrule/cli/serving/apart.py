"""Prompts on ranks of their own, for `ferrule serve --prefill-tp` and for a `--plan` that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
ONE_MACHINE = (
    "--prefill-tp auto: no ranks for prompts alone, which would take the processors of this machine from the others"
)


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


def refuse_apart(prefill: int | None, *, plan: bool, replicas: bool, cp: bool) -> None:
    """Raises `ConfigError` where ``--prefill-tp`` was given with what it does not go with."""
    if prefill is None:
        return
    for flag, given in (("--plan", plan), ("--replicas", replicas), ("--cp", cp)):
        if given:
            raise ConfigError(f"--prefill-tp does not go with {flag}: leave one of them out")


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
    choose_plan: PlanChoice | None,
    *,
    front: Front,
    **served: Any,
) -> None:
    """Serve one model on this machine until it is stopped, with ``prefill`` ranks for prompts (0: those of the plan
    that ``choose_plan`` chooses) beside those that ``options`` ask for. ``served``: further options of `Front.run`."""
    from ferrule.cli.display import Loading
    from ferrule.engine.apart.start import start_apart
    from ferrule.engine.host.speed import speed_of

    async def load() -> tuple[Engine, Speed | None]:
        with Loading(console) as loading:
            engine = await start_apart(options, prefill, loading, choose_plan=choose_plan)
            return engine, await speed_of(engine, None)

    front.run_engine(console, load, **served)
