"""Messages between agents and their callers, as bytes and back."""

import json

import msgspec
import pytest

from agents import desired
from ferrule.cluster import messages
from ferrule.cluster.messages import (
    Answer,
    BeginJob,
    EndJob,
    GetModels,
    GetReachable,
    GetStatus,
    Heartbeat,
    HeartbeatAnswer,
    Introduction,
    JobBegun,
    KeepStandby,
    Known,
    Leave,
    RankExited,
    StartProcess,
    TellModelState,
    UnreadableMessage,
    WantRay,
    WriteModel,
    answer_with,
    decode,
    encode,
)
from ferrule.cluster.records import HostRecord, Member, ModelRecord
from ferrule.cluster.reports import ModelStatus, RankPlace, ReplicaStatus, ServerState
from ferrule.errors import ClusterError

A = "a" * 32
MEMBER = Member(A, "strix-1", 8421, ("192.168.1.5", "fe80::1"), "0.1.0", "3.11.7")
RECORDS = (
    HostRecord(name=A, version=1, writer=A, value=MEMBER),
    ModelRecord(name="demo", version=2, writer=A, value=None),
    ModelRecord(name="other", version=3, writer=A, value=desired(A, hosts=("strix-1",))),
)
STATE = ServerState(
    state="ready",
    hosts=("strix-1",),
    measured=21.5,
    ranks=(RankPlace(0, "strix-1", "tcp"),),
    replicas=(ReplicaStatus("ready", "", "single", ("strix-1",), 1, 0),),
)
ORDER = StartProcess("job-1", 1, 2, ("-c", "pass"), {}, (("10.0.0.1", 7),))
SAID = [
    Introduction(MEMBER, RECORDS), Known(RECORDS), Heartbeat((3, (1 << 64) - 1), stopping=True),
    HeartbeatAnswer((3, 0), (A,)), GetStatus(), GetReachable(1.0), Leave(), Leave(A), WantRay(True, 8600),
    TellModelState("demo", STATE), WriteModel("demo", desired(A)), WriteModel("demo", None),
    BeginJob("job-1", (0, 3)), EndJob(0.5), EndJob(0.5, (1,)), RankExited(0, -9, "last words"),
    KeepStandby("json", {"A": "b"}, 2), ORDER,
]  # fmt: skip


@pytest.mark.parametrize("message", SAID, ids=lambda message: type(message).__name__)
def test_a_message_is_what_it_was(message):
    assert decode(encode(message)) == message
    newer = json.loads(encode(message)) | {"a field": {"of a newer": "version"}}
    assert decode(json.dumps(newer).encode()) == message


def test_every_message_has_a_name_of_its_own():
    def kinds(kind):
        for each in kind.__subclasses__():
            yield from [each] if each.__module__ == messages.__name__ else []
            yield from kinds(each)

    names = [str(each.__struct_config__.tag) for each in kinds(messages.Message)]
    assert len(names) == len(set(names)) > 20


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (GetStatus(), {"type": "Dance"}),
        (GetStatus(), {"type": None}),
        (GetReachable(1.0), {"seconds": -1}),
        (GetReachable(1.0), {"seconds": "soon"}),
        (Leave(A), {"host": "strix-1"}),
        (Heartbeat((0, 0)), {"digest": [1]}),
        (HeartbeatAnswer((0, 0), ()), {"sees": ["strix-1"]}),
        (HeartbeatAnswer((0, 0), ()), {"sees": [A] * 10_001}),
        (BeginJob("job-1"), {"job": "../job"}),
        (BeginJob("job-1"), {"job": "j" * 81}),
        (BeginJob("job-1"), {"listen": list(range(257))}),
        (ORDER, {"rank": 2}),
        (ORDER, {"rank": -1}),
        (ORDER, {"arguments": ["x"] * 1001}),
        (ORDER, {"env": {str(number): "" for number in range(1001)}}),
        (ORDER, {"meet": [["10.0.0.1"]]}),
        (WriteModel("demo", None), {"name": ""}),
        (WriteModel("demo", None), {"name": "x" * 201}),
        (WriteModel("demo", None), {"value": {"model": "x", "host": A, "owner": A, "port": 65536}}),
        (WriteModel("demo", None), {"value": {"model": "x"}}),
    ],
)
def test_what_is_beyond_its_limits_is_not_read(message, change):
    fields = json.loads(encode(message)) | change
    with pytest.raises(UnreadableMessage, match="is it of another version"):
        decode(json.dumps(fields).encode())


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"type":"GetStatus"'])
def test_garbage_is_no_message(payload):
    with pytest.raises(UnreadableMessage):
        decode(payload)


def test_an_answer_is_of_the_type_that_its_question_names():
    begun = answer_with(JobBegun({0: 4000}, ("10.0.0.1",)))
    assert isinstance(begun, Answer)
    assert BeginJob("job-1").answer_from(begun.value) == JobBegun({0: 4000}, ("10.0.0.1",))
    status = ModelStatus(name="demo", wanted=desired(A), pid=7, state="ready", hosts=("strix-1",))
    assert GetModels().answer_from(answer_with((status,)).value) == (status,)
    with pytest.raises(ClusterError, match="answer to GetModels cannot be read"):
        GetModels().answer_from(msgspec.Raw(b'{"demo": 1}'))
