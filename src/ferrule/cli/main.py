"""The ``ferrule`` command itself: its subcommands, and how errors leave it."""

from __future__ import annotations

import atexit
import gc
import logging
import signal
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from ferrule import __version__
from ferrule.cli.output import print_error
from ferrule.config import SETTINGS, read_config
from ferrule.errors import FerruleError

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serving.serve", "Serve a model over the OpenAI API."),
    "generate": ("serving.generate", "Load a model, print its answer to one prompt, and exit."),
    "chat": ("serving.chat", "Talk to a server of the OpenAI API."),
    "connect": (
        "connect.app",
        "Point a client at a server: Claude Code, Codex, OpenCode, aider, Open WebUI, Continue or Zed.",
    ),
    "keys": ("keys.app", "API keys of servers: names, models allowed, limits and expiry."),
    "plan": (
        "plan.app",
        "Say how to split a model over machines, how fast that would be, and whether one machine is faster.",
    ),
    "engines": ("engines.app", "Show the engines that can run a model here, where they are, and which one would."),
    "launch": ("launch.app", "Run a program as several ranks, here and on other hosts: over ssh, by agents, by Ray."),
    "env": (
        "launch.env",
        'Print the environment that `ferrule launch` would set, for use elsewhere: eval "$(ferrule env nccl)".',
    ),
    "version": ("version", "Print the versions that matter in a bug report."),
    "doctor": (
        "doctor.app",
        "Look at the cables, interfaces and RDMA devices; say what is wrong, what it costs, and the cure.",
    ),
    "up": ("cluster.app", "Make this machine a host of a cluster: start a new one, join one, or come back to it."),
    "status": ("cluster.app", "Show the hosts of the cluster, what they have, and how they are."),
    "models": ("cluster.models", "Show the models that the cluster serves, where, and how they are."),
    "stop": ("cluster.models", "End a model on all hosts of the cluster. It does not come back by itself."),
    "down": ("cluster.app", "Stop this host's agent, and all that it runs. `ferrule up` comes back to the cluster."),
    "leave": ("cluster.app", "Take this host, or another one, out of the cluster for good."),
    "token": (
        "cluster.app",
        "Print the line by which another machine joins. With it programs can be run on all hosts: keep it secret.",
    ),
    "service": ("cluster.service", "Have the agent come up with the machine (systemd)."),
    "links": ("links.app", "Find the cables of this machine, and save what it says about them."),
    "lab": ("lab.app", "Rehearse on emulated machines and cables, all on this one."),
    "driver": ("kmod.app", "The kernel module that makes a USB4 cable an RDMA device."),
    "self": ("selfcheck", "Check that what Ferrule does with this machine's devices is right, and how fast it is."),
    "config": ("config", "Show the settings, and where each comes from."),
    "bench": ("bench.app", "Measure what this machine can do, beside other libraries."),
}
"""Command groups: the module below ``ferrule.cli`` that has it as ``app``, and the first line of its help."""


class Commands(TyperGroup):
    """The command line. A command's module is imported when it is called: some need half a second for that.

    Prints Ferrule's own errors as one line and exits with their code; Ctrl-C exits with 130 and says nothing.
    """

    # typer has had click inside and outside of it; so what comes from click is Any here.
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in that only has the help's first line; `resolve_command` gives the one that can be called."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1], rich_markup_mode="rich")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, known, rest = super().resolve_command(ctx, args)
        if known is None or name is None:
            return name, known, rest
        command = load(name)
        if name != "config" and not ctx.resilient_parsing:  # that is how completion parses
            default_from(read_config(), command, secrets=name == "serve")
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FerruleError as error:
            show(error, debug=bool(ctx.params.get("debug")))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(130) from interrupt


def load(name: str) -> Any:
    """The command ``name`` of `COMMANDS`, its module imported."""
    found = typer.main.get_command(import_module(f"ferrule.cli.{COMMANDS[name][0]}").app)
    if isinstance(found, TyperGroup) and name in found.commands:  # a module with several commands
        found = found.commands[name]
    found.name = name
    # The command line itself has these two already.
    found.params = [each for each in found.params if each.name not in ("install_completion", "show_completion")]
    return found


app = typer.Typer(
    name="ferrule",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    # A traceback with local variables would show keys.
    pretty_exceptions_show_locals=False,
    epilog="Examples:\n\n"
    "ferrule serve --demo\n\n"
    "ferrule chat http://127.0.0.1:8420\n\n"
    "Every command explains itself: ferrule serve --help",
)


def show(error: FerruleError, *, debug: bool) -> None:
    """Print ``error`` for a person; the traceback only with ``debug``."""
    if debug:
        from rich.console import Console

        Console(stderr=True).print_exception()
    print_error(str(error))


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ferrule {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", envvar="FERRULE_DEBUG", help="Show tracebacks of errors.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A few desktop machines joined by ordinary cables, as one AI machine."""
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="%(levelname)s: %(message)s")
    if debug:
        for chatty in ("httpcore", "httpx", "asyncio"):
            logging.getLogger(chatty).setLevel(logging.INFO)


def default_from(file: Mapping[str, str], command: Any, *, secrets: bool) -> None:
    """Make what the settings file says the default of the options that have its variables. Only `serve` gets
    ``secrets``: `chat` would send them to any URL."""
    for each in getattr(command, "commands", {}).values():
        default_from(file, each, secrets=secrets)
    for setting in SETTINGS:
        for parameter in command.params:
            if parameter.envvar == setting.variable in file and (secrets or not setting.secret):
                parameter.default = file[setting.variable]


def main() -> None:
    """Run the command line of this process."""
    # At exit Python would search all of torch's objects for garbage, which takes longer than anything else that
    # happens between Ctrl-C and the end.
    atexit.register(gc.freeze)
    try:
        app(prog_name="ferrule")
    finally:
        # What is left is to wait for threads; another Ctrl-C ends that without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
