"""``ferrule keys``: API keys of the servers of this user on this host."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ferrule.cli.flags import AsJson
from ferrule.cli.output import new_table, print_json, wide_console
from ferrule.engine.turn import MOST_PRIORITY
from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from ferrule.serve.keys.record import ApiKey

app = typer.Typer(no_args_is_help=True, help="API keys of servers: names, models allowed, limits and expiry.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, dots, dashes; it is in the request log.")]
_EXAMPLE = "ferrule keys create laptop --models qwen3-8b --requests-per-minute 60 --expires 90d"


@app.command(epilog=f"Examples:\n\nferrule keys create me\n\n{_EXAMPLE}")
def create(
    name: Name,
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="Models that it may use, by name; else all.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests in a minute.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of prompts and answers in a minute.")
    ] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests at a time.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="30d|DATE", help="When it ends, such as 12h, 30d or 2027-01-31 (UTC).")
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            min=-MOST_PRIORITY, max=MOST_PRIORITY, metavar="N", help="Of its requests: lower numbers come first."
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, this once: only its hash is kept.

    Servers of this user on this host know it at once. With the first key they refuse requests without one, also on
    loopback; they go on to when all are revoked.
    """
    from ferrule.serve.keys.record import SHOWN_CHARACTERS, ApiKey, add_key, digest_of, expiry, keys_path, new_key

    now, key = time.time(), new_key()
    allowed = tuple(dict.fromkeys(filter(None, map(str.strip, models.split(","))))) if models is not None else None
    if allowed == ():
        raise ConfigError("--models names no model; leave it out to allow all")
    made = ApiKey(
        name,
        digest_of(key.encode()),
        key[:SHOWN_CHARACTERS],
        round(now, 3),
        allowed,
        requests_per_minute,
        tokens_per_minute,
        concurrent,
        None if expires is None else expiry(expires, now),
        priority,
    )
    try:
        msgspec.convert(msgspec.to_builtins(made), ApiKey)  # its constraints hold for what is read
    except msgspec.ValidationError:
        raise ConfigError(
            f"the name {name!r} cannot be used: up to 64 letters, digits, dots, dashes and underscores"
        ) from None
    path = keys_path()
    add_key(path, made)
    if as_json:
        print_json({"key": key, **_told(made)})
        return
    typer.echo(key)
    typer.echo(f"Keep it: it is not shown again. Its hash is in {path}.", err=True)


@app.command("list", epilog="Examples:\n\nferrule keys list\n\nferrule keys list --json | jq '.[].name'")
def list_keys(as_json: AsJson = False) -> None:
    """Show the keys: how each begins, what it may do, and when it ends."""
    from ferrule.serve.keys.record import keys_path, read_keys

    path = keys_path()
    file = read_keys(path)
    keys = () if file is None else file.keys
    if as_json:
        print_json([_told(each) for each in keys])
        return
    if not keys:
        typer.echo("there is no key; ferrule keys create NAME" if file is None else f"all keys of {path} are revoked")
        return
    columns = ("models", ">requests/min", ">tokens/min", ">at a time", ">priority", "!expires")
    table = new_table("!name", "!begins", *columns)
    for each in keys:
        limits = (each.requests_per_minute, each.tokens_per_minute, each.concurrent)
        over = each.expires is not None and each.expires <= time.time()
        ends = "never" if each.expires is None else _date(each.expires) + (" (over)" if over else "")
        shown = ("–" if limit is None else str(limit) for limit in limits)
        allowed = "all" if each.models is None else ", ".join(each.models)
        table.add_row(each.name, f"{each.shown}…", allowed, *shown, str(each.priority), ends)
    wide_console().print(table)


@app.command(epilog="Examples:\n\nferrule keys revoke laptop")
def revoke(name: Name, as_json: AsJson = False) -> None:
    """Make a key invalid. Servers know it at once; answers that have begun are completed."""
    from ferrule.serve.keys.record import keys_path, remove_key

    remove_key(keys_path(), name)
    if as_json:
        print_json({"revoked": name})
    else:
        typer.echo(f"{name} is revoked")


def _told(key: ApiKey) -> dict[str, object]:
    """What may be shown of ``key``: not its hash either."""
    found: dict[str, object] = msgspec.to_builtins(key)
    del found["digest"]
    return found | {"expires": None if key.expires is None else _date(key.expires), "created": _date(key.created)}


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
