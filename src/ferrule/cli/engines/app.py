"""``ferrule engines``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ferrule.cli.engines import environments
from ferrule.cli.flags import AsJson
from ferrule.cli.output import new_table, print_json, wide_console

EXAMPLES = "Examples:\n\nferrule engines\n\nferrule engines --model ~/models/qwen3-8b-iq2.gguf --device cuda"


app = typer.Typer(invoke_without_command=True)
app.command(epilog=environments.INSTALL_EXAMPLES)(environments.install)
app.command(epilog=environments.CHECK_EXAMPLES)(environments.check)
app.command(epilog=environments.REMOVE_EXAMPLES)(environments.remove)


@dataclass(frozen=True)
class Installed:
    """``place``: of its program; None: it is not installed, and ``install`` says how."""

    engine: str
    place: str | None
    version: str | None
    install: str | None = None


@app.callback(epilog=EXAMPLES)
def engines(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Say which engine `ferrule serve MODEL` would take, and why.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="As of `ferrule serve`.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Show the engines that can run a model here, where they are, and which one would."""
    if context.invoked_subcommand is not None:
        return
    from ferrule.engine.guests.choice import choose, facts_of

    found = installed()
    there = {each.engine for each in found if each.place is not None}
    choice = None if model is None else choose(facts_of(model, deep=True), device, there)
    if as_json:
        print_json({"engines": found, "choice": None if choice is None else choice._asdict()})
        return
    table = new_table("engine", "version", "where")
    for each in found:
        table.add_row(each.engine, each.version or "", each.place or f"not installed: {each.install}")
    console = wide_console()
    console.print(table)
    if choice is not None:
        console.print(f"{model}: {choice.engine}: {choice.why}", highlight=False, markup=False, soft_wrap=True)


def installed() -> list[Installed]:
    """All engines, the built-in one first."""
    from pathlib import Path

    import ferrule
    from ferrule.engine.guests.choice import OWN
    from ferrule.engine.guests.registry import GUESTS

    told = [Installed(OWN, str(Path(ferrule.__file__).parent), ferrule.__version__)]
    for name, guest in GUESTS.items():
        program = guest.find()
        if program is None:
            told.append(Installed(name, None, None, guest.install))
        else:
            told.append(Installed(name, str(program.path), guest.version(program) or None))
    return told
