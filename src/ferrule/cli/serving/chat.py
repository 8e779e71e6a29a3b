"""``ferrule chat``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ferrule.errors import ConfigError, FerruleError

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.cli.serving.client import ChatServer

EXAMPLES = (
    "Examples:\n\n"
    "ferrule chat\n\n"
    "ferrule chat https://strix-1.local:8420 --cacert cert.pem --api-key secret\n\n"
    'ferrule chat --once "What does os.path.join do?"\n\n'
    "printf 'Hello\\nAnd again\\n' | ferrule chat http://127.0.0.1:8420"
)

Messages = list[dict[str, str]]


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def chat(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The server's address; the default is one on this machine.")
    ] = None,
    once: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="Send one message, print the answer, exit.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="What the model is told first.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model; the default is the first served.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="FERRULE_API_KEY", metavar="KEY", help="The server's API key.")
    ] = None,
    cacert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trust this certificate (PEM) too, where the URL is https.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")] = None,
    port: Annotated[int, typer.Option(envvar="FERRULE_PORT", help="The port, where no URL is given.")] = 8420,
) -> None:
    """Talk to a server of the OpenAI API."""
    from rich.console import Console

    from ferrule.cli.serving.client import ChatServer

    options = {"max_tokens": max_tokens, "temperature": temperature}
    options = {field: value for field, value in options.items() if value is not None}
    opening: Messages = [{"role": "system", "content": system}] if system else []
    with closing(ChatServer(url or f"http://127.0.0.1:{port}", api_key, cacert)) as server:
        served = server.models()
        if not served:
            raise ConfigError(f"{server.url} serves no model")
        talk = Talk(server, model or served[0], opening, options)
        if once is not None:
            talk.say(once)
        elif sys.stdin.isatty():
            converse(talk, Console())
        else:
            for line in sys.stdin:
                if line.strip():
                    talk.say(line.strip())


class Talk:
    """A conversation and its history."""

    def __init__(self, server: ChatServer, model: str, opening: Messages, options: Mapping[str, float | None]) -> None:
        self.model = model
        self._server = server
        self._opening = opening
        self._options = options
        self._messages = list(opening)

    def reset(self) -> None:
        self._messages = list(self._opening)

    def say(self, message: str) -> None:
        """Send ``message`` and print the answer as it comes.

        An answer that Ctrl-C cuts short stays in the history as far as it came; one that fails leaves no trace.
        """
        asked = [*self._messages, {"role": "user", "content": message}]
        from ferrule.cli.serving.client import Reasoning

        answer, thought = "", False
        try:
            with closing(self._server.answer(self.model, asked, **self._options)) as pieces:
                for piece in pieces:
                    if isinstance(piece, Reasoning):
                        thought = self._think(piece) or thought
                        continue
                    sys.stdout.write(f"\n\n{piece}" if thought and not answer else piece)
                    sys.stdout.flush()
                    answer += piece
        except KeyboardInterrupt:
            self._remember(asked, answer)
            raise
        finally:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._remember(asked, answer)

    def _think(self, piece: str) -> bool:
        """Print reasoning, on a terminal only and dimmed: it is no part of the answer. Whether it was printed."""
        if sys.stdout.isatty():
            sys.stdout.write(f"\x1b[2m{piece}\x1b[0m")
            sys.stdout.flush()
        return sys.stdout.isatty()

    def _remember(self, asked: Messages, answer: str) -> None:
        if answer:
            self._messages = [*asked, {"role": "assistant", "content": answer}]


def converse(talk: Talk, console: Console) -> None:
    """Read messages from a terminal until /exit or the end of input."""
    with suppress(ImportError):  # not every Python has it; without it lines cannot be edited
        import readline  # noqa: F401 - being imported is what makes input() use it
    console.print(
        f"{talk.model}. /reset forgets the conversation, /exit leaves, Ctrl-C cuts an answer short.", style="dim"
    )
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            console.print()
            return
        match line:
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/reset":
                talk.reset()
                console.print("forgotten", style="dim")
            case _ if line.startswith("/"):
                console.print(f"no such command: {line}; there are /reset and /exit", style="dim", markup=False)
            case _:
                try:
                    talk.say(line)
                except KeyboardInterrupt:
                    console.print("cut short", style="dim")
                except FerruleError as error:
                    console.print(f"error: {error}", style="red", markup=False, highlight=False)
