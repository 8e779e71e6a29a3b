"""``ferrule up``, ``down``, ``status``, ``leave`` and ``token``: this machine as a host of a cluster."""

from __future__ import annotations

import asyncio
import os
import sys
from ipaddress import ip_address
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape

from ferrule.agent.ray.token import remove_symlink
from ferrule.agent.start import agent_command, start_agent
from ferrule.cli import complete
from ferrule.cli.cluster import ray as cluster_ray
from ferrule.cli.cluster.tables import hosts_table, show
from ferrule.cli.flags import AsJson, InCluster
from ferrule.cli.output import print_json
from ferrule.cluster import client, service
from ferrule.cluster.discovery import installed
from ferrule.cluster.home import (
    DEFAULT_CLUSTER,
    DEFAULT_PORT,
    ClusterHome,
    HostSettings,
    choose_cluster,
    known_clusters,
    new_host_id,
    own_host_name,
)
from ferrule.cluster.messages import GetReport, GetStatus, Leave
from ferrule.cluster.reports import ClusterStatus, HostReport
from ferrule.config import parse_address
from ferrule.errors import ClusterError, ConfigError
from ferrule.installation import pip_install
from ferrule.secure import KEY_BYTES, JoinToken, fingerprint, write_address
from ferrule.units import parse_bytes

UP_EXAMPLES = (
    "Examples:\n\nferrule up\n\nferrule up --join ferrule1-...\n\nferrule up --join ferrule1-... --address 192.168.1.5"
)

REPORT_SECONDS = 3.0


app = typer.Typer()


@app.command(epilog=UP_EXAMPLES)
def up(
    join: Annotated[str | None, typer.Option(metavar="TOKEN", help="Join the cluster whose host printed this.")] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST[:PORT]", help="Where a host of it is, if mDNS does not reach there."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", envvar="FERRULE_CLUSTER", help="What to call a new one.")
    ] = None,
    host_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What to call this host, if not by its own name.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Where the agent listens; {DEFAULT_PORT} at first.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Only at this address; all if left out.")
    ] = None,
    mdns: Annotated[
        bool | None, typer.Option("--mdns/--no-mdns", help="Tell of this host, and hear of others, by multicast DNS.")
    ] = None,
    ray: Annotated[
        bool | None, typer.Option("--ray/--no-ray", help="Also run Ray on all hosts, from now on; or no more.")
    ] = None,
    ray_port: Annotated[
        int | None, typer.Option(help="The first of the 300 ports that Ray takes on each host; 8600.")
    ] = None,
    ray_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of Ray's objects on each host; 200 MiB.")
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, as a service manager wants it.")] = False,
) -> None:
    """Make this machine a host of a cluster: start a new one, join one, or come back to it.

    An agent stays in the background until `ferrule down`. Nothing of the system is changed, and no root is needed.
    """
    console = Console()
    if ray is not None and foreground:
        raise ConfigError("--ray and --no-ray are orders to an agent that runs: without --foreground, on any host")
    if (ray_port or ray_memory) and not ray:
        raise ConfigError("--ray-port and --ray-memory go with --ray")
    if ray:
        cluster_ray.check_installed()
    store = parse_bytes(ray_memory) if ray_memory is not None else None
    seeds = [_place(text) for text in address or ()]
    if listen:
        _check_listen(listen)
    token = JoinToken.decode(join) if join is not None else None
    home = _home(token, cluster)
    if home.exists and not home.is_running() and client.remembered(home).gone(home.settings.host):
        if token is None:
            raise ClusterError(f"this host was taken out of the cluster {home.name!r}: join it again, or ferrule leave")
        home.remove()
    fresh = not home.exists
    if fresh:
        if token is None:
            _refuse_second_cluster(home)
        settings = HostSettings(new_host_id(), host_name or own_host_name(), port or DEFAULT_PORT)
        home.create(token.key if token is not None else os.urandom(KEY_BYTES), settings)
    elif home.is_running():
        if ray is not None:
            cluster_ray.order(home, ray, ray_port, store)
        else:
            console.print(f"this host's agent of the cluster {home.name!r} runs already", highlight=False)
        _show(console, home)
        return
    told: dict[str, Any] = {"name": host_name or None, "port": port, "listen": listen, "mdns": mdns}
    if token is not None or seeds:
        places = [*seeds, *(token.addresses if token is not None else ())]
        told["seeds"] = tuple(dict.fromkeys(map(write_address, places)))
    # What was told this time is kept for the next times.
    kept = {field: value for field, value in told.items() if value is not None}
    home.write_settings(replace(home.settings, **kept))
    if foreground:
        os.execv(sys.executable, agent_command(home))
    try:
        start_agent(home)
        if token is not None:
            try:
                client.wait_joined(home, token)
            except BaseException:
                client.stop_agent(home)
                raise
    except BaseException:
        if fresh:
            home.remove()  # nothing half made is left
        raise
    if ray is not None:
        cluster_ray.order(home, ray, ray_port, store)
    if fresh and token is None and home.settings.mdns:
        client.await_rivals(home)
    _show(console, home)


def _home(token: JoinToken | None, cluster: str | None) -> ClusterHome:
    """Of which cluster the words speak. Raises `ConfigError` or `ClusterError`."""
    if token is None:
        if cluster is None and known_clusters():
            return choose_cluster(None)
        return ClusterHome(cluster or DEFAULT_CLUSTER)
    if cluster is not None and cluster != token.cluster:
        raise ConfigError(f"the token is of the cluster {token.cluster!r}, not of {cluster!r}")
    home = ClusterHome(token.cluster)
    if home.exists and fingerprint(home.key) != token.fingerprint:
        raise ClusterError(
            f"this host is in another cluster that is called {token.cluster!r}, too; leave that first: ferrule leave"
        )
    return home


def _refuse_second_cluster(home: ClusterHome) -> None:
    """Two people who both type `ferrule up` want one cluster and not two. Raises `ClusterError`."""
    near = [heard for heard in client.clusters_nearby() if heard.cluster == home.name]
    if near:
        where = ", ".join(sorted({heard.name for heard in near}))
        raise ClusterError(
            f"there is a cluster {home.name!r} already, on {where}: join it with what `ferrule token` prints there "
            "(ferrule up --join TOKEN), or make another one: ferrule up --cluster NAME"
        )


def _check_listen(text: str) -> None:
    """Others are told to come there, so neither a name nor "every address" will do. Raises `ConfigError`."""
    try:
        fits = not ip_address(text).is_unspecified
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(f"--listen {text!r} is no address of an interface, such as 192.168.1.5: see ferrule links")


def _place(text: str) -> tuple[str, int]:
    """``host``, ``host:port``, an IPv6 address, or one in brackets with a port."""
    if text.count(":") == 1 or (text.startswith("[") and "]:" in text):
        return parse_address(text, "--address")
    bare = text.removeprefix("[").removesuffix("]")
    if not bare:
        raise ConfigError(f"--address {text!r} is not host or host:port")
    return bare, DEFAULT_PORT


def _show(console: Console, home: ClusterHome) -> None:
    status = client.ask(home, GetStatus())
    reports = _reports(home, status)
    show([*hosts_table(status, reports), *cluster_ray.ray_lines(status, reports)])
    console.print(
        "\nAnother machine joins by this line (with it programs can be run here; keep it secret):\n", style="dim"
    )
    typer.echo(f"ferrule up --join {client.token_of(home).encode()}")
    if not installed():
        console.print(
            f"\nmDNS is off: zeroconf is not installed ({escape(pip_install('cluster'))}); addresses are in the token",
            style="dim",
            highlight=False,
        )


@app.command(epilog="Examples:\n\nferrule down")
def down(cluster: InCluster = None) -> None:
    """Stop this host's agent, and all that it runs. `ferrule up` comes back to the cluster."""
    home = choose_cluster(cluster)
    stopped = client.stop_agent(home)
    typer.echo(f"this host's agent of the cluster {home.name!r} {'has stopped' if stopped else 'was not running'}")


@app.command(epilog="Examples:\n\nferrule leave\n\nferrule leave --host strix-2")
def leave(
    cluster: InCluster = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Another one, such as a machine that is gone for good.", autocompletion=complete.hosts
        ),
    ] = None,
) -> None:
    """Take this host, or another one, out of the cluster for good."""
    home = choose_cluster(cluster)
    if host is not None:
        members = client.ask(home, GetStatus()).hosts
        found = next((member for member in members if member.name == host), None)
        if found is None:
            raise ClusterError(f"the cluster has no host {host!r}, only {', '.join(each.name for each in members)}")
        if found.host != home.settings.host:
            client.ask(home, Leave(found.host))
            typer.echo(f"{host} is no host of the cluster {home.name!r} any more")
            return
    if home.is_running():
        client.ask(home, Leave())
    else:
        _say_goodbye(home)
    if service.remove(home):
        typer.echo("the service is gone")
    client.stop_agent(home)
    remove_symlink(home)
    home.remove()
    typer.echo(f"this host has left the cluster {home.name!r}")


def _say_goodbye(home: ClusterHome) -> None:
    """A host whose files are damaged can leave, too: its errors say that it should."""
    try:
        told, why = client.say_goodbye(home), ""
    except ClusterError as error:
        told, why = [], f" ({error})"
    if not told:
        typer.echo(
            f"no other host could be told{why}; if there are any, say there: ferrule leave --host NAME, with this "
            "host's name",
            err=True,
        )


@app.command(epilog="Examples:\n\nferrule token")
def token(cluster: InCluster = None) -> None:
    """Print the line by which another machine joins. With it programs can be run on all hosts: keep it secret."""
    typer.echo(f"ferrule up --join {client.token_of(choose_cluster(cluster)).encode()}")


@app.command(epilog="Examples:\n\nferrule status\n\nferrule status --json")
def status(cluster: InCluster = None, as_json: AsJson = False) -> None:
    """Show the hosts of the cluster, what they have, and how they are."""
    home = choose_cluster(cluster)
    found = client.ask(home, GetStatus())
    reports = _reports(home, found)
    if as_json:
        hosts = [vars(host) | {"report": reports.get(host.host)} for host in found.hosts]
        print_json(vars(found) | {"hosts": hosts})
        return
    show([*hosts_table(found, reports), *cluster_ray.ray_lines(found, reports)])


def _reports(home: ClusterHome, status: ClusterStatus) -> dict[str, HostReport]:
    members = [member for member in status.hosts if member.is_up]
    return asyncio.run(client.ask_all(home, members, GetReport(), REPORT_SECONDS))
