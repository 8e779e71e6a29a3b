"""Messages between agents and their callers: tagged structs, a JSON object in each frame, decoded here only.

A `Question` is answered by an `Answer` with a value of the type that the question names, or by a `Failure`. Fields that
are not known, as of a newer version, are ignored; lists and texts have limits, beside that of the frame.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar, get_args

import msgspec
from msgspec import Meta

from ferrule.cluster.desired import DesiredModel, HostId, Name, Text
from ferrule.cluster.records import Member, Record
from ferrule.cluster.reports import ClusterStatus, HostReport, ModelStatus, RayStatus, ServerState
from ferrule.errors import ClusterError
from ferrule.secure import Address

A = TypeVar("A")
Records = Annotated[tuple[Record, ...], Meta(max_length=10_000)]
Hosts = Annotated[tuple[HostId, ...], Meta(max_length=10_000)]
Digest = tuple[int, int]
JobName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,80}\Z")]
Rank = Annotated[int, Meta(ge=0, lt=1 << 16)]
Seconds = Annotated[float, Meta(ge=0)]
Environment = Annotated[dict[str, str], Meta(max_length=1000)]

CONTROL = "{control}"
"""In the command of an order: the number of the descriptor of the process's control socket."""


class UnreadableMessage(ClusterError):
    """A frame that is whole, and no message of this version."""


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Anything that is sent over a `Connection`."""


class Answer(Message, frozen=True):
    value: msgspec.Raw


class Failure(Message, frozen=True):
    """Reason why there is no answer. ``code``: of the `FerruleError`."""

    error: str
    code: str = ClusterError.code


# Between two agents


class Introduction(Message, frozen=True):
    """The first message of an agent that comes, with all that it knows; answered by `Known` or `Refused`."""

    member: Member
    records: Records


class Refused(Message, frozen=True):
    reason: str


class Known(Message, frozen=True):
    """All records of an agent; answered by the same."""

    records: Records


class Heartbeat(Message, frozen=True):
    """``digest``: of all records; answered by `HeartbeatAnswer`. ``stopping``: the last one of an agent that stops on
    purpose."""

    digest: Digest
    stopping: bool = False


class HeartbeatAnswer(Message, frozen=True):
    """``sees``: the ids of the hosts to which the answering one has a connection."""

    digest: Digest
    sees: Hosts


# Questions and orders


class Question(Message, Generic[A], frozen=True):
    """``A``: the type of the answer."""

    def answer_from(self, value: msgspec.Raw) -> A:
        """Raises `ClusterError`."""
        (kind,) = get_args(type(self).__orig_bases__[0])  # type: ignore[attr-defined]
        try:
            answer: A = msgspec.json.decode(value, type=kind)
        except msgspec.MsgspecError as error:
            raise ClusterError(f"the answer to {type(self).__name__} cannot be read: {error}") from None
        return answer


class GetStatus(Question[ClusterStatus], frozen=True):
    pass


class GetReport(Question[HostReport], frozen=True):
    pass


class DescribeDevices(Question[str], frozen=True):
    """A host's devices that ``devices`` allows, as ``--device`` names them, for the planner: a `HostReport` of
    `plan.cluster` in JSON. The first time they are measured, which takes seconds. ``now``: with what is free in this
    moment, else of the last seconds."""

    devices: str
    now: bool = False


class ProbeDevice(Question[str], frozen=True):
    """Why that device of the host that is asked cannot be used now; empty where it can."""

    device: Name


class GetModels(Question[tuple[ModelStatus, ...]], frozen=True):
    """The model servers of the host that is asked."""


class GetDesiredModels(Question[dict[str, DesiredModel]], frozen=True):
    """The models that should be up, on any host."""


class TellModelState(Question[None], frozen=True):
    """From a model server to its agent."""

    name: Name
    state: ServerState


class WriteModel(Question[None], frozen=True):
    """Have a model up from now on, or (None) no more."""

    name: Name
    value: DesiredModel | None


class GetReachable(Question[Hosts], frozen=True):
    """The ids of the hosts that answer within ``seconds``, that which is asked first."""

    seconds: Seconds


class Leave(Question[None], frozen=True):
    """Take a host out of the cluster for good; None: that which is asked."""

    host: HostId | None = None


class StopAgent(Question[None], frozen=True):
    pass


class GetRay(Question[RayStatus], frozen=True):
    pass


class WantRay(Question[None], frozen=True):
    """Have Ray on all hosts, or on none. ``port`` and ``store`` as in `DesiredRay`, None for what they were."""

    wanted: bool
    port: int | None = None
    store: int | None = None


# Processes


class JobBegun(msgspec.Struct, frozen=True, tag=True):
    """``ports``: where the ranks will listen that asked for it, by rank; ``addresses``: of the host."""

    ports: dict[int, int]
    addresses: tuple[Text, ...]


class BeginJob(Question[JobBegun], frozen=True):
    """A job that lives as long as this connection; `RankExited` tells of its ranks. ``listen``: the ranks for which a
    port is to be reserved; ``grace``: the seconds that ranks have to end when the connection does."""

    job: JobName
    listen: Annotated[tuple[Rank, ...], Meta(max_length=256)] = ()
    grace: Seconds = 0.1


class EndJob(Message, frozen=True):
    """End all ranks; answered by `JobEnded`. ``ranks``: these only, at once; nothing is told of them any more."""

    grace: Seconds = 0.5
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=256)] = ()


class RankExited(Message, frozen=True):
    """``code``: as in `subprocess`; ``tail``: the last lines of its output."""

    rank: Rank
    code: int
    tail: str


class JobEnded(Message, frozen=True):
    pass


class StartProcess(Question[None], frozen=True):
    """Start a rank of a job that was begun: ``arguments`` of the host's Python, ``env`` beside the agent's. ``meet``:
    where it finds rank 0, or a rank that knows the way; a link-local address is tried by way of every interface.

    After the answer the caller sends `Go`, and the connection is the process's control socket from then on.
    """

    job: JobName
    rank: Rank
    world_size: Rank
    arguments: Annotated[tuple[str, ...], Meta(max_length=1000)]
    env: Environment
    meet: Annotated[tuple[Address, ...], Meta(max_length=4096)] = ()

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise ValueError(f"{self.job!r} rank {self.rank} cannot name a process")


class Go(Message, frozen=True):
    pass


class StandbyKept(msgspec.Struct, frozen=True, tag=True):
    """Number of standby processes, and of those that have done their imports."""

    kept: int
    ready: int


class KeepStandby(Question[StandbyKept], frozen=True):
    """Keep processes ready that have imported ``module``, as long as this connection lives; it may ask again."""

    module: Name
    env: Environment
    count: int


PlainQuestion = (
    GetStatus | GetReport | DescribeDevices | ProbeDevice | GetModels | GetDesiredModels | TellModelState | WriteModel
    | GetReachable | Leave | StopAgent | GetRay | WantRay | KeepStandby
)  # fmt: skip
AnyMessage = (
    PlainQuestion | BeginJob | StartProcess | Answer | Failure
    | Introduction | Refused | Known | Heartbeat | HeartbeatAnswer | EndJob | RankExited | JobEnded | Go
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def answer_with(value: object) -> Answer:
    return Answer(msgspec.Raw(_encoder.encode(value)))


def decode(payload: bytes) -> AnyMessage:
    """Raises `UnreadableMessage`."""
    try:
        message: AnyMessage = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise UnreadableMessage(f"a message cannot be read ({error}); is it of another version?") from None
    return message
