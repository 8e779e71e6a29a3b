"""Orders and answers of a probe's agent, and both ends of a measurement in one process over loopback."""

from __future__ import annotations

import secrets
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec import structs

from ferrule.errors import LinkError
from ferrule.links import Latency
from ferrule.probe import End, new_key, this_machine
from ferrule.probe.orders import (
    LINE_LIMIT,
    Answer,
    Describe,
    Failed,
    Flow,
    Key,
    Knock,
    Knocked,
    Latencies,
    Listen,
    Listening,
    Measure,
    Rates,
    Start,
    TimeMessages,
    TimeStreams,
    decode_answer,
    decode_order,
    decode_start,
    encode,
)
from ferrule.probe.worker import MARK, Worker

FLOW = Flow(0, "127.0.0.1", 1, "127.0.0.1", "", "forth")
MESSAGES = TimeMessages(
    epoch=bytes(16), flows=(FLOW, FLOW), seconds=0.01, timeout=20, transport="tcp", sizes=(64, 4096), lend="/tmp/x"
)
STREAMS = TimeStreams(epoch=bytes(16), flows=(FLOW,), seconds=0.2, timeout=20, transport="tcp", warm=0.05)


@pytest.mark.parametrize(
    "order", [Describe(), Listen((("::1", "lo"),)), MESSAGES, STREAMS, Knock("a", 1, "b", "c", 1.0)]
)
def test_orders_arrive_as_they_were_given(order: Describe | Listen | Measure | Knock) -> None:
    assert decode_order(encode(order)) == order


@pytest.mark.parametrize(
    "answer", [Listening((1, 2)), Latencies(1448, (Latency(64, 1e-6, 2e-6, 3e-6),)), Rates((1e9,), 0.5), Failed("no")]
)
def test_answers_too(answer: Answer) -> None:
    assert decode_answer(encode(answer)) == answer


@pytest.mark.parametrize(
    "line",
    [
        b'{"do":"dance"}',
        b'{"places":[]}',
        b"[1]",
        b'{"do":"describe","more":' + b"[" * 100_000,
        encode(structs.replace(MESSAGES, sizes=(1 << 40,))),
        encode(structs.replace(STREAMS, epoch=b"short")),
        encode(structs.replace(STREAMS, flows=(FLOW,) * 1000)),
        encode(Describe()) + b" " * LINE_LIMIT,
    ],
)
def test_other_orders_are_refused(line: bytes) -> None:
    with pytest.raises(LinkError, match=r"nothing that the probe of ferrule .* says"):
        decode_order(line)


@pytest.mark.parametrize("start", [Start(b"short", 1.0), Start(bytes(32), 0.0)])
def test_a_start_without_a_whole_key_or_an_end_is_refused(start: Start) -> None:
    with pytest.raises(LinkError):
        decode_start(encode(start))


def test_an_agent_says_who_it_is() -> None:
    with this_machine() as end:
        end.launch(new_key(), 60).meet()
        assert end.name != "this machine"
        assert end.kernel
        end.order(Listen((("127.0.0.1", ""),)))
        assert len(end.answer(20, Listening).ports) == 1
        end.order(Describe())
        with pytest.raises(LinkError, match="answered Description where Rates was due"):
            end.answer(20, Rates)


@pytest.mark.parametrize(
    "said", [f"{MARK + b'{}'!r}", f"{MARK!r} + b'x' * {LINE_LIMIT + 1}", f"b'x' * {2 * LINE_LIMIT}"]
)
def test_what_is_no_answer_is_refused(said: str) -> None:
    program = f"import sys; sys.stdout.buffer.write({said}); print(flush=True); sys.stdin.read()"
    wrong = pytest.raises(LinkError, match=r"probe of ferrule|line of more than")
    with End("strix-b", [sys.executable, "-c", program]) as end, wrong:
        end.launch(new_key(), 60).meet()


@pytest.fixture
def key() -> Key:
    return new_key()


@pytest.fixture
def ends(key: Key) -> tuple[Worker, Worker, int]:
    """Both, and the port on which the second listens."""
    first, second = Worker(key), Worker(key)
    listening = second.carry_out(Listen((("127.0.0.1", ""),)))
    assert isinstance(listening, Listening)
    return first, second, listening.ports[0]


def both(ends: tuple[Worker, Worker, int], order: Measure) -> list[Answer]:
    first, second, port = ends
    flows = tuple(structs.replace(flow, port=port) for flow in order.flows)
    order = structs.replace(order, epoch=secrets.token_bytes(16), flows=flows)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(second.carry_out, order)
        one = pool.submit(first.carry_out, structs.replace(order, dials=True))
        return [one.result(60), other.result(60)]


def test_both_ends_time_messages(ends: tuple[Worker, Worker, int]) -> None:
    one, other = both(ends, structs.replace(MESSAGES, lend=""))
    assert isinstance(one, Latencies)
    assert [latency.size for latency in one.latency] == [64, 4096]
    assert all(0 < latency.minimum <= latency.median <= latency.p99 for latency in one.latency)
    assert isinstance(other, Latencies)
    assert other.latency == ()


def test_both_ends_time_streams(ends: tuple[Worker, Worker, int]) -> None:
    one, other = both(ends, STREAMS)
    assert isinstance(one, Rates)
    assert isinstance(other, Rates)
    assert one.rates == (0.0,)
    assert other.rates[0] > 0


def test_a_knock_is_answered(ends: tuple[Worker, Worker, int]) -> None:
    first, _, port = ends
    answer = first.carry_out(Knock("127.0.0.1", port, "127.0.0.1", "", 0.05))
    assert isinstance(answer, Knocked)
    assert answer.answered
