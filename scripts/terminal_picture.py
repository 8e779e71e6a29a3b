"""Draw docs/pictures/serve.svg: what `ferrule serve --demo` prints, and one answer through `ferrule chat`.

    .venv/bin/python scripts/terminal_picture.py docs/pictures/serve.svg

Everything in the picture is what the programs really printed in this run; left out are the lines of progress, which on
a terminal are bars that vanish.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
QUESTION = "What does json.dumps do?"
COMMAND = [sys.executable, "-m", "ferrule.cli.main"]


def printed_by_serve(server: subprocess.Popen[str]) -> list[str]:
    """The server's lines up to the last one before it waits."""
    lines = []
    assert server.stdout is not None
    for line in server.stdout:
        if not re.match(r"rank \d+: ", line):
            lines.append(line.rstrip("\n"))
        if line.startswith("Ctrl-C"):
            return lines
    raise SystemExit("ferrule serve ended early:\n" + "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    env = {**os.environ, "COLUMNS": str(WIDTH)}
    server = subprocess.Popen([*COMMAND, "serve", "--demo"], stdout=subprocess.PIPE, text=True, env=env)
    try:
        lines = printed_by_serve(server)
        found = re.search(r"http://[\d.]+:\d+", "\n".join(lines))
        assert found is not None
        asked = [*COMMAND, "chat", found[0], "--once", QUESTION]
        answer = subprocess.run(asked, capture_output=True, text=True, env=env, check=True).stdout.strip()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(10)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ make run", style="bold green"))
    console.print(Text("\n".join(lines)))
    console.print()
    console.print(Text(f'$ .venv/bin/ferrule chat {found[0]} --once "{QUESTION}"', style="bold green"))
    console.print(Text(answer))
    picture = console.export_svg(title="ferrule")
    # The reader's own monospaced font will do: a picture should load nothing from elsewhere.
    out.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL).replace("Fira Code, ", ""))


if __name__ == "__main__":
    main()
