"""``ferrule service``: the agent comes up with the machine."""

from __future__ import annotations

import getpass

import typer

from ferrule.agent.start import agent_command
from ferrule.cli.flags import InCluster
from ferrule.cluster import service
from ferrule.cluster.home import choose_cluster

app = typer.Typer(no_args_is_help=True, help="Have the agent come up with the machine (systemd).")


@app.command(epilog="Examples:\n\nferrule up && ferrule service install")
def install(cluster: InCluster = None) -> None:
    """Run this host's agent as a service of the user: from now on, and after each start of the machine."""
    home = choose_cluster(cluster)
    file = service.install(home, agent_command(home))  # its own agent takes over; models come up again
    typer.echo(f"wrote {file}; the agent runs. journalctl --user -u {service.unit_name(home)} shows what it says")
    user = getpass.getuser()
    if not service.lingers(user):
        typer.echo(f"it stops when you log out, unless: loginctl enable-linger {user}")


@app.command(epilog="Examples:\n\nferrule service remove")
def remove(cluster: InCluster = None) -> None:
    """Stop the service and take it away. The host remains a member: `ferrule up` starts the agent by hand."""
    home = choose_cluster(cluster)
    typer.echo("the service is gone" if service.remove(home) else "there was no service")


@app.command("print", epilog="Examples:\n\nferrule service print > ~/.config/systemd/user/ferrule-home.service")
def show(cluster: InCluster = None) -> None:
    """Print what systemd would be told, for another service manager or another place."""
    home = choose_cluster(cluster)
    typer.echo(service.unit_text(home, agent_command(home)), nl=False)
