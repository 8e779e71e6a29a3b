"""Interface of a guest: how its program is found and started, and how a request and its answer are written."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from ferrule.engine.abilities import Abilities
from ferrule.engine.types import FinishReason, RankInfo, SamplingParams, Token

if TYPE_CHECKING:
    from ferrule.engine.guests.members import Members
    from ferrule.engine.options import EngineOptions
    from ferrule.lab import Lab
    from ferrule.model import ModelSpec
    from ferrule.plan import Plan

ANSWER_SECONDS = 60.0
"""Time limit for a program to say its version or its flags: one in Python may import torch for that."""


class Program(NamedTuple):
    """A guest's program on this machine."""

    path: Path


class Room(NamedTuple):
    """``context``: tokens of prompt and answer together; ``sequences``: at once."""

    context: int
    sequences: int


@dataclass(frozen=True)
class Launch:
    """What a guest is to run. ``model``: a directory, or a GGUF file. ``room``: for which it must have room at least:
    how long a sequence may be, and how many run at once; before `Guest.room` was asked, what was asked for.
    ``threads``: of the processor, for each rank of ``plan``. ``socket``: path of the Unix socket on which its server is
    to listen, in a directory of this user alone. ``lab``: an emulated one, on whose hosts the ranks of ``plan`` run in
    turn; ``members``: hosts of the cluster, instead; None and None: on this machine."""

    program: Program
    model: Path
    name: str
    spec: ModelSpec
    plan: Plan
    options: EngineOptions
    room: Room
    threads: int
    socket: Path = Path()
    lab: Lab | None = None
    members: Members | None = None

    def host(self, rank: int) -> str:
        """Name of a rank's host; empty for this machine."""
        if self.lab is not None:
            return self.lab.name(rank % self.lab.size)
        member = None if self.members is None else self.members.host(rank)
        return "" if member is None else member.name


@dataclass(frozen=True)
class Command:
    """Command line of a guest's server. ``environment``: variables beside this process's own; None: not to be there.
    ``lost``: done, with words for people, once something that the server needs has ended."""

    line: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    lost: asyncio.Future[str] | None = None


@dataclass(frozen=True)
class Ask:
    """One sequence that a guest is asked for: the ``prompt``, and behind it the tokens ``made`` of its answer where it
    goes on after a crash. ``params`` are as the user gave them, but for the seed, which is there always, and another
    one behind other tokens. ``most``: tokens that are wanted still, at least one."""

    prompt: tuple[int, ...]
    params: SamplingParams
    most: int
    made: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """All that comes before the next token."""
        return self.prompt + self.made


class Post(NamedTuple):
    """A request of HTTP: its path and JSON body."""

    path: str
    body: Mapping[str, Any]


class Piece(NamedTuple):
    """What a guest has said: the next tokens of an answer, and why it ends behind them, if it does. End tokens, stop
    tokens and limits are the engine's business: a guest need not set `Token.finish`. ``untold``: tokens that it has
    made before these without saying which; `GuestEngine` asks for them again, by `Guest.whole`."""

    tokens: tuple[Token, ...] = ()
    finish: FinishReason | None = None
    untold: int = 0


class Answer(Protocol):
    """Reader of one answer's stream."""

    def read(self, event: bytes) -> Iterable[Piece]:
        """What the data of one server-sent event says. Raises `RequestError` and `EngineError` where that is that
        something is wrong; `ValueError`, `LookupError` or `TypeError` for what is no answer at all."""
        ...


class Guest(ABC):
    """An engine of others: a description, without state. What runs is in `GuestEngine`.

    ``abilities``: what of a request it honours, and its name. ``install``: how to install it, for people. ``health``:
    path that answers 200 as soon as, and as long as, it can take requests. ``facts``: path at which it says in JSON
    what it has loaded. ``start_seconds``: time limit from the start of its server until it is healthy: it loads the
    model meanwhile. ``unknown``: whether it runs models that the built-in engine does not know. ``options``: those
    names of `EngineOptions` that it heeds, of those that not all engines have (`ferrule.engine.guests.start.FLAGS`).
    """

    abilities: ClassVar[Abilities]
    install: ClassVar[str]
    health: ClassVar[str] = "/health"
    facts: ClassVar[str | None] = None
    start_seconds: ClassVar[float] = 1800.0
    unknown: ClassVar[bool] = False
    listens_openly: ClassVar[bool] = False
    """Whether its ranks on several hosts listen there without a key, to each other."""
    options: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        """As ``--engine`` and ``--runtime`` say it."""
        return self.abilities.engine

    @abstractmethod
    def find(self) -> Program | None:
        """Its program on this machine, None where it is not installed. Starts nothing."""

    @abstractmethod
    def version(self, program: Program) -> str:
        """What it says of its version, by which it is started; empty where it says none."""

    @abstractmethod
    def check(self, model: Path, spec: ModelSpec, options: EngineOptions) -> None:
        """Raises `ConfigError`, `ModelError` or `PlanError` for what it does not run, before anything is started."""

    def room(self, launch: Launch) -> Room:
        """Room to start it with, where ``launch.room`` is what was asked for, or else the most that the model and this
        version have. Further sequences wait at our end, in the order of their turns. Raises `PlanError` where there is
        not enough memory."""
        return launch.room

    @abstractmethod
    def begun(self, launch: Launch) -> AbstractAsyncContextManager[Command]:
        """The command of its server. What that needs beside runs within the context, and has ended behind it. Raises
        `EngineError`."""

    @abstractmethod
    def ranks(self, launch: Launch, pid: int) -> tuple[RankInfo, ...]:
        """Its ranks, for people. ``pid``: of the process that holds its server (`ferrule.process.guarded`)."""

    def context(self, facts: Mapping[str, Any]) -> int | None:
        """The most tokens of a sequence, by what it says at `facts`; None: as many as it was asked for."""
        return None

    def resumes(self, params: SamplingParams) -> bool:
        """Whether an answer can go on behind tokens that it is given with the prompt. Else it is made anew after a
        crash, by the same seed, and goes on where its tokens are the same."""
        return params.constraint is None

    @abstractmethod
    def post(self, ask: Ask) -> Post:
        """The request for an answer, as a stream of server-sent events."""

    @abstractmethod
    def answer(self, ask: Ask) -> Answer:
        """A reader of the answer to `post`."""

    def whole(self, ask: Ask) -> Post:
        """The request for an answer in one piece. Only of guests that leave tokens untold."""
        raise NotImplementedError

    def whole_answer(self, ask: Ask, data: bytes) -> Piece:
        """What the answer to `whole` says. Raises as `Answer.read` does."""
        raise NotImplementedError

    @abstractmethod
    def refusal(self, data: bytes) -> str:
        """What an answer of another HTTP status than 200 says is wrong."""


def on_path(*names: str) -> Program | None:
    """The first of the programs ``names`` that is on the PATH."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    return None if found is None else Program(Path(found))


def said_by(program: Program, *arguments: str) -> str:
    """What a program prints on both streams; empty where it does not run, or not within `ANSWER_SECONDS`."""
    try:
        told = subprocess.run(
            [program.path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.decode(errors="replace")
