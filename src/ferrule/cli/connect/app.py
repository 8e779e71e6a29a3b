"""``ferrule connect``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ferrule.cli.complete import clients
from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from ferrule.cli.connect.clients import Client, Target
    from ferrule.cli.connect.settings import Change
    from ferrule.cli.serving.client import ChatServer

EXAMPLES = (
    "Examples:\n\n"
    "ferrule connect claude-code\n\n"
    "FERRULE_API_KEY=… ferrule connect codex --url https://strix-1.local:8420 --write\n\n"
    "ferrule connect zed --undo"
)

app = typer.Typer()


@app.command(epilog=EXAMPLES)
def connect(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CLIENT",
            help="claude-code, codex, opencode, aider, open-webui, continue or zed.",
            autocompletion=clients,
        ),
    ],
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The server's address; the default is one on this machine.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Which model; the default is the first served.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar="FERRULE_API_KEY", metavar="KEY", help="The server's API key.")
    ] = None,
    cacert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trust this certificate (PEM) too, where the URL is https.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write it into the client's settings, and show what changes.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the settings as they were before --write.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    port: Annotated[int, typer.Option(envvar="FERRULE_PORT", help="The port, where no URL is given.")] = 8420,
) -> None:
    """Point a client at a server: Claude Code, Codex, OpenCode, aider, Open WebUI, Continue or Zed.

    Prints what does so. With --write it goes into the client's settings file, where all else stays as it is. Then one
    real request is sent by that client's API. Exit code: 0 it works.
    """
    from ferrule.cli.connect.clients import CLIENTS, Target

    if name not in CLIENTS:
        raise ConfigError(f"{name!r} is no client that is known here: {', '.join(CLIENTS)}")
    client = CLIENTS[name]
    if undo:
        _undo(name, yes=yes)
        return
    if write and client.kind is None:
        raise ConfigError(f"{client.title} has no settings file; leave --write out, and set what is printed")

    from ferrule.cli.serving.client import Card, ChatServer

    with closing(ChatServer(url or f"http://127.0.0.1:{port}", key or None, cacert)) as server:
        cards = server.cards()
        if not cards:
            raise ConfigError(f"{server.url} serves no model")
        chosen = model or next(iter(cards))
        card = cards.get(chosen, Card())
        target = Target(server.url.removesuffix("/v1"), chosen, card.context, key or None, cacert, card.able)
        if write:
            _write(name, client, target, yes=yes)
        else:
            _print(name, client, target)
        _check(server, client, target)


def _print(name: str, client: Client, target: Target) -> None:
    """What points the client at the server, with a variable in the key's place."""
    from dataclasses import replace

    from ferrule.cli.connect.clients import environ, starting
    from ferrule.cli.connect.settings import fresh, short

    variables = client.environment(target)
    alone = any(target.url in value for value in variables.values())
    if variables:
        typer.echo(f"{client.title} {'in' if alone else 'needs in'} the environment:\n")
        _print_variables(variables, target)
        typer.echo()
    if client.kind is not None:
        path = client.path(environ())
        shown = replace(target, key=target.key and short(target.key))
        typer.echo(f"{f'or in {path}' if alone else f'{client.title} in {path}'} (--write does it):\n")
        typer.echo(f"{fresh(client.kind, starting(name, path, client.edits(shown)))}\n")
    typer.echo(client.hint)


def _print_variables(variables: Mapping[str, str], target: Target) -> None:
    from ferrule.cli.connect.clients import KEY_VARIABLE

    for variable, value in variables.items():
        key = "…" if variable == KEY_VARIABLE else f'"${KEY_VARIABLE}"'
        typer.echo(f"export {variable}={key if value == target.key else shlex.quote(value)}")


def _write(name: str, client: Client, target: Target, *, yes: bool) -> None:
    from ferrule.cli.connect import settings
    from ferrule.cli.connect.clients import environ, starting

    assert client.kind is not None
    path = client.path(environ())
    wanted = settings.change(path, client.kind, starting(name, path, client.edits(target)))
    if wanted.before == wanted.after:
        typer.echo(f"{path} has it already")
        return
    _agree(wanted, f"Write {path}?", yes=yes)
    settings.write(name, wanted)
    typer.echo(f"wrote {path}; `ferrule connect {name} --undo` takes it back\n")
    needed = {variable: value for variable, value in client.environment(target).items() if value == target.key}
    if needed and (target.key or "").encode() not in (wanted.after or b""):
        typer.echo(f"{client.title} needs in the environment, too:\n")
        _print_variables(needed, target)
        typer.echo()
    typer.echo(client.hint)


def _undo(name: str, *, yes: bool) -> None:
    from ferrule.cli.connect import settings

    wanted, untouched = settings.undoing(name)
    if not untouched and wanted.before != wanted.after:
        if yes:
            raise ConfigError(
                f"{wanted.path} was changed after it was written, which would be lost; without --yes it is shown first"
            )
        typer.echo(f"{wanted.path} was changed after it was written; that is lost, too:")
    _agree(wanted, f"Restore {wanted.path}?", yes=yes)
    settings.undo(name, wanted)
    typer.echo(f"{wanted.path} is as it was" if wanted.after is not None else f"{wanted.path} is gone, as it was")


def _agree(wanted: Change, question: str, *, yes: bool) -> None:
    typer.echo(wanted.diff())
    if not yes:
        typer.confirm(question, abort=True)


def _check(server: ChatServer, client: Client, target: Target) -> None:
    from ferrule.cli.connect.trial import ask

    typer.echo(f"\nasking {target.model} at {target.url} by the API of {client.api}, as {client.title} does …")
    typer.echo(ask(server, client.api, target.model))
