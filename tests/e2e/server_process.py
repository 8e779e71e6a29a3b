"""Start ``ferrule serve`` as a user does, and see what becomes of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import psutil
from openai import OpenAI

READY_WITHIN = 90.0
URL = re.compile(r"https?://(?:127\.0\.0\.1|localhost):\d+")


@dataclass
class Server:
    """A running ``ferrule serve``."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def client(self, **options: object) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})  # type: ignore[arg-type]

    def health(self) -> httpx.Response:
        return httpx.get(f"{self.url}/health", timeout=10)

    def ranks(self) -> list[psutil.Process]:
        """The rank processes, in rank order."""
        return self._named("ferrule rank")

    def standby(self) -> list[psutil.Process]:
        """Those that wait, with their imports done."""
        return self._named("ferrule standby")

    def _named(self, name: str) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return sorted((child for child in children if child.name() == name), key=lambda child: child.pid)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def wait_until(condition: Callable[[], object], within: float, what: str) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within} s"
        time.sleep(0.02)


def start_server(*arguments: str, env: dict[str, str] | None = None, standby: bool = False) -> Server:
    """Without standby processes, unless they are asked for: their imports take as long as the server's own ranks'."""
    kept = "--standby" if standby else "--no-standby"
    command = [sys.executable, "-m", "ferrule.cli.main", "serve", *arguments, kept, "--port", "0"]
    # A session of its own, as a terminal's job has: what it leaves behind can be found by its group.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1", **(env or {})},
    )
    server = Server(process)

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.lines.append(line)

    threading.Thread(target=collect, daemon=True).start()

    def ready() -> bool:
        assert process.poll() is None, f"the server ended with {process.returncode}: {server.output}"
        return "Ctrl-C" in server.output

    try:
        wait_until(ready, READY_WITHIN, "ready")
    except BaseException:
        process.kill()
        raise
    found = URL.search(server.output)
    assert found is not None, server.output
    server.url = found[0]
    return server
