"""The ``ferrule`` command itself: its subcommands, and how errors leave it."""

from __future__ import annotations

import atexit
import gc
import logging
import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ferrule import __version__
from ferrule.cli import version
from ferrule.cli.bench import app as bench
from ferrule.cli.cluster import app as cluster
from ferrule.cli.cluster import models, service
from ferrule.cli.doctor import app as doctor
from ferrule.cli.kmod import app as driver
from ferrule.cli.lab import app as lab
from ferrule.cli.launch import app as launch
from ferrule.cli.launch import env
from ferrule.cli.links import app as links
from ferrule.cli.plan import app as plan
from ferrule.cli.serving import chat, generate, serve
from ferrule.errors import FerruleError


class Commands(TyperGroup):
    """Prints Ferrule's own errors as one line and exits with their code; Ctrl-C exits with 130 and says nothing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FerruleError as error:
            show(error, debug=bool(ctx.params.get("debug")))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(130) from interrupt


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
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if debug:
        console.print_exception()
    console.print(Text("error: ", style="bold red") + Text(str(error)), soft_wrap=True)


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


app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command(epilog=generate.EXAMPLES)(generate.generate)
app.command(epilog=chat.EXAMPLES)(chat.chat)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=launch.EXAMPLES, context_settings=launch.PASS_ON)(launch.launch)
app.command(epilog=env.EXAMPLES)(env.env)
app.command(epilog=version.EXAMPLES)(version.version)
app.command(epilog=doctor.EXAMPLES, cls=doctor.Command)(doctor.doctor)
app.command(epilog=cluster.UP_EXAMPLES)(cluster.up)
app.command(epilog=cluster.STATUS_EXAMPLES)(cluster.status)
app.command(epilog=models.MODELS_EXAMPLES)(models.models)
app.command(epilog=models.STOP_EXAMPLES)(models.stop)
app.command(epilog=cluster.DOWN_EXAMPLES)(cluster.down)
app.command(epilog=cluster.LEAVE_EXAMPLES)(cluster.leave)
app.command(epilog=cluster.TOKEN_EXAMPLES)(cluster.token)
app.add_typer(service.app, name="service")
app.add_typer(links.app, name="links")
app.add_typer(lab.app, name="lab")
app.add_typer(driver.app, name="driver")
app.add_typer(bench.app, name="bench")


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
