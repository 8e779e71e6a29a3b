"""``ferrule engines install``, ``check`` and ``remove``: engines of others with an environment of their own here."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ferrule.engine.guests.environments import Environment

INSTALL_EXAMPLES = "Examples:\n\nferrule engines install vllm\n\nferrule engines install vllm --yes"
CHECK_EXAMPLES = "Examples:\n\nferrule engines check vllm"
REMOVE_EXAMPLES = "Examples:\n\nferrule engines remove vllm"

Name = Annotated[str, typer.Argument(metavar="ENGINE", help="Its name: vllm.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def install(name: Name, yes: Yes = False) -> None:
    """Make an environment of Python for an engine, beside Ferrule's own, and try it out.

    Says how large it is and asks first. What ended half way is gone on with by the same command, and counts as
    installed only when all of it is there and works. Each host that is to run it needs it.
    """
    from ferrule.engine.guests.environments import environment_of
    from ferrule.engine.guests.environments import install as make

    environment = environment_of(name)
    typer.echo(_size(environment))
    if not yes:
        typer.confirm("Install it?", abort=True)
    _show(environment, make(environment, lambda line: typer.echo(f"  {line}")).found)


def check(name: Name) -> None:
    """Try out an engine that is installed: it is imported, and one process reduces over the fabric."""
    from ferrule.engine.guests.environments import check as try_out
    from ferrule.engine.guests.environments import environment_of

    environment = environment_of(name)
    _show(environment, try_out(environment).found)


def remove(name: Name, yes: Yes = False) -> None:
    """Remove an engine's environment, also what is left of an attempt to install it."""
    from ferrule.engine.guests.environments import environment_of
    from ferrule.engine.guests.environments import remove as delete

    environment = environment_of(name)
    if not environment.folder.exists():
        typer.echo(f"{name} is not installed; nothing was done.")
        return
    if not yes:
        typer.confirm(f"Remove {environment.folder}?", abort=True)
    typer.echo(f"Removed {environment.folder}." if delete(environment) else "It was gone already.")


def _size(environment: Environment) -> str:
    from ferrule.units import format_bytes

    place = environment.folder
    there = next(each for each in (place, *place.parents) if each.exists())
    return (
        f"{environment.name} {environment.version}: about {format_bytes(environment.download_bytes)} to download, "
        f"{format_bytes(environment.disk_bytes)} in {place} ({format_bytes(shutil.disk_usage(there).free)} free there)"
    )


def _show(environment: Environment, found: dict[str, str]) -> None:
    typer.echo(f"{environment.name} works: {', '.join(f'{name} {version}' for name, version in found.items())}")
