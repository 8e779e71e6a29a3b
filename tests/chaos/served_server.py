"""A served model in a process of its own, and its ranks, cables and blocks on disk."""

from __future__ import annotations

import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from ferrule.process import tied

PROGRAM = Path(__file__).with_name("served_process.py")
START_SECONDS = 180.0
CABLE_SECONDS = 10.0
BLOCKS = "ferrule/prefix/rank-{}/*/" + "?" * 32


class Served:
    """``folder``: of its log and its cache. ``cables``: of each rank's host; 0: none, all ranks are on this host. As a
    context it is ready, and ended."""

    def __init__(self, folder: Path, options: dict[str, Any], cables: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.cables, self.url = folder, cables, ""
        self._log = folder / "log"
        self._said: queue.Queue[str] = queue.Queue()
        caches = {"XDG_CACHE_HOME": str(folder), "FERRULE_MODEL_CACHE": str(folder / "shards")}
        self.process = subprocess.Popen(
            tied([sys.executable, str(PROGRAM), json.dumps(options), str(cables)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **caches},
        )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        try:
            self.url = self._heard(START_SECONDS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def cable(self, what: str, cable: int, host: int) -> None:
        """``what``: "cut", "blackhole" or "restore"."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {cable} {host}\n")
        self.process.stdin.flush()
        assert self._heard(CABLE_SECONDS) == "done"

    def server(self) -> psutil.Process:
        """That which has HTTP: the process that was started may be the one that ties it to this."""
        parent = self.ranks()[0].parent()
        assert parent is not None
        return parent

    def ranks(self) -> dict[int, psutil.Process]:
        """Those that run now, by their numbers."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if child.name() == "ferrule rank":
                    found[int(child.environ()["FERRULE_RANK"])] = child
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it ends just now
        return found

    def damage_blocks(self, rank: int, chooser: random.Random) -> int:
        """Each second block of the prefix cache on a rank's disk is changed, shorter or gone afterwards. Returns how
        many these are."""
        files = sorted(self.folder.glob(BLOCKS.format(rank)))[::2]
        for file in files:
            try:
                data = bytearray(file.read_bytes())
            except FileNotFoundError:
                continue  # its rank has just made room
            what = chooser.choice(["changed", "shorter", "gone"])
            if what == "gone":
                file.unlink(missing_ok=True)
                continue
            if what == "changed":
                data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
            file.write_bytes(data if what == "changed" else data[: len(data) // 2])
        return len(files)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line.strip())
        self._said.put("")

    def _heard(self, seconds: float) -> str:
        try:
            line = self._said.get(timeout=seconds)
        except queue.Empty:
            line = ""
        if not line:
            raise RuntimeError(f"the served model is not there, within {seconds:g} s; its log: {self.log[-3000:]}")
        return line


class Breath:
    """Meanwhile measures for how long this machine gave no processor to a thread that wanted one: a rank that was not
    heard of for as long was lost by right."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.02):
            last, before = time.monotonic(), last
            self.longest = max(self.longest, last - before)
