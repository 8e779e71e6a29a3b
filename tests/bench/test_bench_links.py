"""`ferrule links probe` in a lab: does it measure what the cables are, and see what is wrong with them?"""

from __future__ import annotations

import csv
import io
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ferrule import __version__
from ferrule.errors import LinkError
from ferrule.fabric.join.control_channel import Deadline
from ferrule.lab import Lab, Topology, pair
from ferrule.links import Bandwidth, Latency, LinkEnd, MeasuredLink, MeasuredPair, examine
from ferrule.probe import Effort, in_lab_host, new_key, probe_pair, to_csv
from ferrule.probe.ends import End
from ferrule.probe.lend import borrow, borrowing, lend
from ferrule.probe.messages import tcp_exchanges
from ferrule.probe.orders import Description
from ferrule.probe.probe import confirmed

EFFORT = Effort(message=0.04, stream=0.5, warm=0.2, streams=(1,), sizes=(64, 4096))
SECONDS = 60.0


@contextmanager
def probing(topology: Topology) -> Iterator[tuple[Lab, Callable[[], MeasuredPair]]]:
    key = new_key()
    with Lab(topology) as lab, in_lab_host(lab, 0) as one, in_lab_host(lab, 1) as other:
        for end in (one, other):
            end.launch(key, SECONDS)
        for end in (one, other):
            end.meet()
        yield lab, lambda: probe_pair(one, other, EFFORT, lambda line: None)


def test_csv_has_a_line_for_each_number() -> None:
    ends = LinkEnd("a", "eth0"), LinkEnd("b", "eth1")
    link = MeasuredLink(
        ends, 5.0, framing=1.1, latency=(Latency(64, 1e-6, 2e-6, 3e-6),), bandwidth=(Bandwidth(1, 1e9, 2e9, 3e9, 4e9),)
    )
    rows = list(csv.DictReader(io.StringIO(to_csv([MeasuredPair(("a", "b"), 5.0, (link,), link.bandwidth[0])]))))
    assert [row["value"] for row in rows if row["what"] == "latency_median"] == ["2.000"]
    back = [row for row in rows if row["direction"] == "back"]
    assert [(row["first_interface"], row["what"], row["value"]) for row in back] == [
        ("eth0", "goodput", "2.0000"),
        ("eth0", "wire_rate", "2.2000"),
        ("all", "goodput", "2.0000"),
    ]


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        with one, listener.accept()[0] as other:
            yield one, other


@pytest.mark.parametrize(("theirs", "newest"), [("999.0", "999.0"), ("0.0.1", __version__)])
def test_another_version_there_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, theirs: str, newest: str
) -> None:
    end = End("strix-b", [])
    told = Description("strix-b", "", "", theirs, (), {}, {})
    monkeypatch.setattr(end, "answer", lambda seconds, kind: told)
    with pytest.raises(LinkError, match=rf"strix-b has ferrule {theirs}, this .* install {newest} from"):
        end.meet()


def test_one_thread_may_drive_both_ends() -> None:
    with connected() as (one, other):
        alone = tcp_exchanges(one, other)["alone"]
        for size in (64, 8 << 20):  # the second does not fit into the buffers of both
            times = alone.play(size, 3, True, Deadline(30))
            assert len(times) == 3
            assert min(times) > 0
        with connected() as (stranger, _), pytest.raises(LinkError, match="64 bytes"):
            tcp_exchanges(one, stranger)["alone"].play(64, 1, True, Deadline(0.05))


def test_a_socket_is_lent_to_another_process(tmp_path: Path) -> None:
    place = tmp_path / "lent"
    with connected() as (one, other), borrowing(str(place)) as listener:
        assert place.stat().st_mode & 0o077 == 0
        lend(str(place), other)
        with borrow(listener) as lent:
            one.sendall(b"hello")
            assert lent.recv(5) == b"hello"
    assert not place.exists()


def looked(together: float, busy: float = 0.5) -> Bandwidth:
    return Bandwidth(1, 1e9, 1e9, together / 2 * 1e9, together / 2 * 1e9, busy)


@pytest.mark.parametrize(
    ("looks", "counts"),
    [
        ([looked(1.9)], 0),
        ([looked(0.7), looked(0.6), looked(0.62)], 2),
        ([looked(0.7), looked(1.9), looked(1.95)], 1),  # the first look was disturbed
        ([looked(1.3), looked(0.6), looked(0.7)], 2),
        ([looked(1.0, busy=1.0), looked(0.6, busy=1.0), looked(0.7, busy=1.0)], 2),  # it hid behind busy processors
        ([looked(1.3, busy=1.0)], 0),  # which alone may do this
    ],
)
def test_a_bad_look_is_confirmed(looks: list[Bandwidth], counts: int) -> None:
    left = iter(looks)
    assert confirmed(lambda: next(left)) is looks[counts]
    assert next(left, None) is None


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_rate_and_delay_are_those_of_the_cable() -> None:
    with probing(pair(2).shaped(rate=50e6, delay=2e-3)) as (_, measure):
        found = measure()
    assert found.hosts == ("host0", "host1")
    assert len(found.links) == 2
    for link in found.links:
        assert not link.fault
        assert link.latency[0].size == 64
        assert link.latency[0].minimum > 2e-3
        # A quiet machine is within 2 %; on a busy one both ends are late now and then.
        assert 20e6 < link.forth * link.framing < 75e6
        assert 20e6 < link.back * link.framing < 75e6
    assert found.together is not None
    assert found.together.forth > max(link.forth for link in found.links) * 1.1


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_hosts")
def test_what_is_wrong_with_a_cable_is_found() -> None:
    with probing(pair(rates=[100e6])) as (lab, measure):
        (cable,) = lab.cables

        def errors() -> list[str]:
            return [one.id for one in examine(measure()) if one.severity == "error"]

        cable.shape(collapse=0.3)
        assert errors() == ["probe-collapse"]
        cable.clear()
        cable.mute(0)
        assert errors() == ["probe-one-way"]
        cable.clear()
        cable.stall()
        assert errors() == ["probe-stall"]
