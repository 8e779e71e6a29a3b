"""Hosts and cables that exist, fail on demand, and are gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule.errors import ConfigError, LabError
from ferrule.lab import Lab, chain, edges, mesh, pair, switch
from ferrule.lab.netns.iproute import batch
from ferrule.lab.netns.namespace import Namespace

SECONDS = 10.0
pytestmark = pytest.mark.usefixtures("emulated_hosts")


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}"
        time.sleep(0.005)


def interfaces() -> list[str]:
    """Those of the namespace in which this thread is."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return sorted(line.split(":")[0].strip() for line in lines)


class Post:
    """Datagrams from one host to another, by the address of their first cable or a given one."""

    def __init__(self, lab: Lab, source: int, target: int, address: str | None = None) -> None:
        self.address = address or lab.address(target, source)
        with lab.inside(target):
            self.receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.receiver.bind(("0.0.0.0", 0))
        with lab.inside(source):
            self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def arrives(self, seconds: float) -> bool:
        """Send until one arrives, for at most ``seconds``."""
        end = time.monotonic() + seconds
        words = os.urandom(8)  # what an earlier call sent may still be on its way
        self.receiver.settimeout(0.02)
        while time.monotonic() < end:
            try:
                self.sender.sendto(words, (self.address, self.receiver.getsockname()[1]))
                if self.receiver.recv(8) == words:
                    return True
            except TimeoutError:
                continue
            except OSError:  # no route
                return False
        return False


def carrier(lab: Lab, host: int, interface: str) -> bool:
    process = lab.popen(host, ["cat", f"/sys/class/net/{interface}/carrier"], stdout=subprocess.PIPE, text=True)
    return bool(process.communicate(timeout=SECONDS)[0].strip() == "1")


def test_cables_join_their_ends_and_no_others() -> None:
    before = interfaces()
    with Lab(chain(3)) as lab, Lab(chain(3)) as other:
        for each in (lab, other):
            for source, target in ((0, 1), (1, 0), (1, 2), (2, 1)):
                assert Post(each, source, target).arrives(SECONDS)
            assert not Post(each, 0, 2, each.address(2, 1)).arrives(0.2)
        # The labs use the same addresses and never meet.
        with lab.inside(1):
            assert interfaces() == ["cable0", "cable1", "lo"]
            lonely = socket.create_server((lab.address(1, 0), 4000))
        with other.inside(0), pytest.raises(ConnectionRefusedError):
            socket.create_connection((lab.address(1, 0), 4000), timeout=SECONDS)
        lonely.close()
        assert interfaces() == before
        with pytest.raises(LabError, match="share no cable"):
            lab.address(0, 2)
    assert interfaces() == before
    with pytest.raises(LabError, match="not up"):
        lab.processes(0)


def test_hosts_that_forward_are_reached_by_one_more_address() -> None:
    with Lab(chain(4), forwarding=True) as lab:
        for source, target in ((0, 3), (3, 0), (1, 3), (0, 1)):
            assert Post(lab, source, target, f"10.78.{target}.1").arrives(SECONDS)
        assert not Post(lab, 0, 2, lab.address(2, 1)).arrives(0.2)


def test_switch_joins_all() -> None:
    with Lab(switch(4)) as lab:
        assert all(
            Post(lab, source, target).arrives(SECONDS) for source in range(4) for target in range(4) if source != target
        )


@pytest.mark.slow
def test_one_host_drops_out_of_a_switch() -> None:
    with Lab(switch(3)) as lab:
        (network,) = lab.cables
        for fault in (network.cut, network.blackhole):
            fault(2)
            assert (network.state(2), network.state(1)) == ("cut" if fault == network.cut else "dark", "up")
            assert carrier(lab, 2, network.interface) is (fault == network.blackhole)
            assert Post(lab, 0, 1).arrives(SECONDS)
            assert not Post(lab, 0, 2).arrives(0.2)
            assert not Post(lab, 2, 1).arrives(0.2)
        network.restore()
        assert Post(lab, 2, 1).arrives(SECONDS)


def test_pulled_cable_takes_the_carrier_from_both_ends_and_no_other() -> None:
    with Lab(pair(2)) as lab:
        first, second = lab.between(0, 1)
        first.cut()
        assert first.state(0) == first.state(1) == "cut"
        for host in (0, 1):
            until(lambda host=host: not carrier(lab, host, first.interface), "carrier lost")  # type: ignore[misc]
            assert carrier(lab, host, second.interface)
        assert not Post(lab, 0, 1).arrives(0.2)
        assert Post(lab, 0, 1, second.address(1)).arrives(SECONDS)
        first.restore()
        until(lambda: carrier(lab, 0, first.interface), "carrier back")
        assert Post(lab, 0, 1).arrives(SECONDS)


def test_dark_cable_keeps_its_carrier_and_carries_nothing() -> None:
    with Lab(pair()) as lab:
        cable = lab.cables[0]
        post = Post(lab, 0, 1)
        assert post.arrives(SECONDS)
        cable.blackhole()
        assert not post.arrives(0.2)
        assert carrier(lab, 0, cable.interface)
        cable.cut()
        assert not carrier(lab, 0, cable.interface)
        cable.blackhole()
        assert carrier(lab, 0, cable.interface)
        cable.restore()
        assert post.arrives(SECONDS)


def seconds_to_send(lab: Lab, source: int, target: int, count: int) -> float:
    """One TCP stream of ``count`` bytes."""
    with lab.inside(target):
        listener = socket.create_server((lab.address(target, source), 0))

    def send() -> None:
        with lab.inside(source), socket.create_connection(listener.getsockname()) as connection:
            connection.sendall(bytes(count))

    sender = threading.Thread(target=send)
    begin = time.monotonic()  # not later: what arrives before we look would seem to come in no time
    sender.start()
    with listener, listener.accept()[0] as connection:
        buffer = bytearray(1 << 20)
        left = count
        while left:
            left -= connection.recv_into(buffer)
        took = time.monotonic() - begin
    sender.join()
    return took


@pytest.mark.slow
def test_rates_hold_and_change_while_in_use() -> None:
    with Lab(pair(rates=[200e6])) as lab:
        count = 5_000_000
        at_200 = count * 8 / 200e6
        # Never faster, but for the bucket; slower when the machine is busy.
        assert 0.9 * at_200 < seconds_to_send(lab, 0, 1, count) < 50 * at_200
        lab.cables[0].limit(50e6, sender=1)
        assert seconds_to_send(lab, 1, 0, count) > 0.9 * 4 * at_200
        assert (lab.cables[0].rate(0), lab.cables[0].rate(1)) == (200e6, 50e6)
        lab.cables[0].limit(None)
        lab.cables[0].limit(None)
        assert min(seconds_to_send(lab, 1, 0, count) for _ in range(5)) < 0.9 * at_200
        with pytest.raises(LabError, match="blackhole"):
            lab.cables[0].limit(0)


def test_programs_see_their_host_only() -> None:
    script = "echo $FERRULE_HOST_ID $MORE; ls /sys/class/net; cat /sys/class/net/cable1/mtu"
    with Lab(mesh(3), mtu=9000) as lab:
        process = lab.popen(2, ["sh", "-c", script], env={"MORE": "more"}, stdout=subprocess.PIPE, text=True)
        assert process.communicate(timeout=SECONDS)[0].split() == ["host2", "more", "cable1", "cable2", "lo", "9000"]
        missing = lab.popen(0, ["no-such-program"], stderr=subprocess.PIPE, text=True)
        assert "cannot run no-such-program" in missing.communicate(timeout=SECONDS)[1]
        assert missing.returncode == 127


def test_ipv6_link_local_addresses_on_request() -> None:
    with Lab(pair()) as plain, Lab(pair(), ipv6=True) as lab:
        for each, wanted in ((plain, 0), (lab, 1)):
            process = each.popen(0, ["grep", "-c", "cable0", "/proc/net/if_inet6"], stdout=subprocess.PIPE, text=True)
            assert int(process.communicate(timeout=SECONDS)[0] or 0) == wanted


def test_closing_kills_what_is_left() -> None:
    with Lab(pair()) as lab:
        # The shell ends, its child stays.
        lab.popen(0, ["sh", "-c", "sleep 1000 & sleep 1000 & exit 0"]).wait(SECONDS)
        until(lambda: len(lab.processes(0)) == 2, "two sleep")
        left = lab.processes(0)
        assert lab.processes(1) == []
    # They have been killed; a busy machine takes a moment to bury them.
    until(lambda: not [pid for pid in left if Path(f"/proc/{pid}").exists() and not zombie(pid)], "both are dead")


def zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_failed_construction_leaves_nothing() -> None:
    fds = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(LabError, match="mtu"), Lab(pair(), mtu=1_000_000_000):
        pass
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


def test_kill_9_of_the_lab_ends_its_hosts_cables_and_programs() -> None:
    """An interface of ours ends when its other end, in a host of the lab, does."""
    witness = Namespace()
    program = (
        "import sys, time\n"
        "from ferrule.lab import Lab, pair\n"
        "from ferrule.lab.netns.iproute import batch\n"
        "with Lab(pair()) as lab:\n"
        "    line = f'link add name thread type veth peer name thread netns {sys.argv[1]}'\n"
        "    batch(lab._hosts[0], [line])\n"
        "    process = lab.popen(1, ['sleep', '1000'])\n"
        "    print(process.pid, flush=True)\n"
        "    process.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, witness.path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        inside = int(owner.stdout.readline())
        with witness.entered():
            assert interfaces() == ["lo", "thread"]
        owner.kill()
    until(lambda: not Path(f"/proc/{inside}").exists() or zombie(inside), "the program in the host died")

    def gone() -> bool:
        with witness.entered():
            return interfaces() == ["lo"]

    until(gone, "the host is gone")
    witness.close()


def test_without_rights_it_says_what_it_needs() -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("there is no setpriv to take rights away with")
    program = "from ferrule.lab import obstacle; print(obstacle())"
    command = [setpriv, "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    assert "the lab needs root" in done.stdout


def test_signals_reach_the_program_itself() -> None:
    with Lab(edges(1, [])) as lab:
        process = lab.popen(
            0, ["sh", "-c", "trap 'exit 5' USR1; echo; while :; do sleep 0.01; done"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.read(1)
        os.kill(process.pid, signal.SIGUSR1)
        assert process.wait(SECONDS) == 5


def one_way(lab: Lab, source: int, target: int, count: int = 30) -> float:
    """The least time that a datagram took, in seconds."""
    post = Post(lab, source, target)
    post.receiver.settimeout(SECONDS)
    where = (post.address, post.receiver.getsockname()[1])
    found = []
    for _ in range(count):
        begin = time.monotonic()
        post.sender.sendto(b"now", where)
        post.receiver.recv(8)
        found.append(time.monotonic() - begin)
    return min(found)


def test_delays_hold_and_change_while_in_use() -> None:
    with Lab(pair().shaped(delay=5e-3)) as lab:
        cable = lab.cables[0]
        assert Post(lab, 0, 1).arrives(SECONDS)
        assert one_way(lab, 0, 1, 3) >= 5e-3
        cable.shape(sender=0, delay=20e-3)
        assert one_way(lab, 0, 1, 3) >= 20e-3
        assert one_way(lab, 1, 0) < 20e-3
        cable.shape(delay=0.0)
        assert one_way(lab, 0, 1) < 5e-3
        assert cable.counters(0)["delivered_frames"] >= 30
        assert "delay" not in cable.shaping(1).describe()
        cable.clear()
        assert one_way(lab, 0, 1, 3) >= 5e-3


def test_the_shaper_is_never_faster_than_it_is_told() -> None:
    """Slower it may be, on a busy machine."""
    with Lab(pair().shaped(rate=200e6, delay=1e-4)) as lab:
        cable, count = lab.cables[0], 2_000_000
        at_200 = count * 8 / 200e6
        assert 0.95 * at_200 < seconds_to_send(lab, 0, 1, count) < 50 * at_200
        cable.retrain(0.5)
        assert seconds_to_send(lab, 1, 0, count) > 0.95 * 2 * at_200
        cable.limit(None)
        assert min(seconds_to_send(lab, 1, 0, count) for _ in range(5)) < 0.9 * at_200
        assert (cable.rate(0), cable.shaping(0).delay) == (None, 1e-4)


def test_chance_is_the_same_for_the_same_seed() -> None:
    def lost(seed: int) -> list[int]:
        with Lab(pair().shaped(loss=0.5), seed=seed) as lab:
            cable = lab.cables[0]
            # Nothing but the test's own packets: neither side has to ask for an address.
            known = f"neighbour replace {cable.address(1)} dev {cable.interface} lladdr 02:00:00:00:00:09"
            batch(lab._hosts[0], [known])
            with lab.inside(0):
                sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            found = []
            for _ in range(40):
                before = cable.counters(0)["lost"]
                frames = cable.counters(0)["frames"]
                sender.sendto(b"one", (cable.address(1), 4000))
                until(lambda frames=frames: cable.counters(0)["frames"] > frames, "it came")  # type: ignore[misc]
                found.append(int(cable.counters(0)["lost"] - before))
            sender.close()
            return found

    assert lost(1) == lost(1) != lost(2)


def test_a_cable_in_use_is_handed_to_the_shaper_and_goes_on() -> None:
    """One that the kernel has carried so far; connections over it live on."""
    with Lab(pair()) as lab:
        cable = lab.cables[0]
        with lab.inside(1):
            listener = socket.create_server((lab.address(1, 0), 0))
        with lab.inside(0):
            client = socket.create_connection(listener.getsockname(), timeout=SECONDS)
        server = listener.accept()[0]
        server.settimeout(SECONDS)
        # Seldom enough that TCP, which doubles its wait each time, does not lose one segment many times over.
        for changes in ({}, {"delay": 1e-3}, {"loss": 0.06}, {"loss": 0.0, "corrupt": 0.06}, {"corrupt": 0.0}):
            cable.shape(**changes)
            sent = os.urandom(300_000)
            sender = threading.Thread(target=client.sendall, args=(sent,))
            sender.start()
            got = bytearray()
            while len(got) < len(sent):
                got += server.recv(1 << 16)
            sender.join()
            assert got == sent
        counters = cable.counters(0)
        assert counters["lost"] > 0
        assert counters["corrupted"] > 0
        for each in (client, server, listener):
            each.close()


def test_a_shaped_cable_fails_in_every_way_and_comes_back() -> None:
    with Lab(pair().shaped(delay=1e-4, rate=1e9)) as lab:
        cable = lab.cables[0]
        there, back = Post(lab, 0, 1), Post(lab, 1, 0)
        assert there.arrives(SECONDS)
        cable.mute(0)
        assert not there.arrives(0.1)
        cable.unmute(0)
        cable.mute(1)
        # An address that is asked for now would be answered in vain; these know each other.
        assert not back.arrives(0.1)
        cable.unmute(1)
        assert back.arrives(SECONDS)
        cable.blackhole()
        assert not there.arrives(0.1)
        assert carrier(lab, 0, cable.interface)
        cable.cut()
        assert not carrier(lab, 0, cable.interface)
        cable.restore()
        assert there.arrives(SECONDS)
        cable.stall()
        assert not there.arrives(0.1)
        assert cable.faults() == ("stalled",)
        cable.resume()
        assert there.arrives(SECONDS)
        cable.retrain(0.5)
        assert cable.rate(0) == 0.5e9
        cable.clear()
        assert cable.rate(0) == 1e9
        assert cable.faults() == ()
    with Lab(pair()) as lab, pytest.raises(LabError, match="has no rate"):
        lab.cables[0].retrain()


def test_one_host_drops_out_of_a_shaped_switch() -> None:
    with Lab(switch(3).shaped(delay=1e-4)) as lab:
        network = lab.cables[0]
        assert Post(lab, 0, 2).arrives(SECONDS)
        network.blackhole(2)
        assert not Post(lab, 0, 2).arrives(0.1)
        assert Post(lab, 0, 1).arrives(SECONDS)
        network.restore(2)
        assert Post(lab, 0, 2).arrives(SECONDS)


def test_hosts_have_their_cores() -> None:
    script = "from ferrule.process.control_groups import processor_quota; print(processor_quota())"
    program = [sys.executable, "-c", script]
    try:
        with Lab(pair(), cores=(1.5, 0.25)) as lab:
            found = [subprocess.check_output(lab.command(host, program), timeout=SECONDS) for host in range(2)]
            groups = [group.path for group in lab._groups]
            assert all(path.is_dir() for path in groups)
    except ConfigError as error:
        pytest.skip(str(error))
    assert [float(each) for each in found] == [1.5, 0.25]
    assert not any(path.exists() for path in groups)
    with pytest.raises(ConfigError, match="2 hosts needs as many numbers of cores"):
        Lab(pair(), cores=(1.0,))
