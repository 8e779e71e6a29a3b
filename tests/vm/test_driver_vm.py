"""The USB4 verbs driver on its loopback wire, in a virtual machine: what programs see, data under faults, unloading."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from driver_programs import compiled

from ferrule.lab.vm import DEBUG_KERNELS, Guest, VmLab, complaints
from ferrule.lab.vm.lab import RDMA
from ferrule.lab.vm.options import machines_with

pytestmark = pytest.mark.vm

DRIVER = Path(__file__).parents[2] / "driver"
PROGRAMS = ("verbs_check", "verbs_malice", "verbs_nccl", "verbs_jaccl")
DEADLINE = 600
"""Seconds for a guest that takes about 40 on a quiet machine."""

SCRIPT = r"""
ip link set lo up; ip link set frl0 up; ip addr add 10.9.0.1/24 dev frl0
faults=/sys/kernel/debug/ferrule_rdma/ferrule0
mkdir -p /results; dmesg -c > /dev/null

check() {
    echo "== $(cut -d' ' -f1 /proc/uptime) $*"
    "$@" || { echo "rc $?: $*"; cat $faults/qps $faults/stats; exit 1; }
}

within() { timeout $(($1 * SLOWER)) "${@:2}"; } # SECONDS PROGRAM ...: on a stock kernel; others may take longer

perftest() { within 120 "$@" -d ferrule0 -x 1 $peer > "/tmp/$side" 2>&1; }

# A perftest program with itself, over the loopback wire. When its work is done it measures the processor's clock, and
# one side gives up where a crowded host makes that uneven; the other one then misses its last words.
pair() {
    side=server peer= perftest "$@" &
    for ((i = 0; i < 600; i++)); do grep -q ':4853 .* 0A' /proc/net/tcp && break; sleep 0.1; done
    echo "== $(cut -d' ' -f1 /proc/uptime) $*"
    side=client peer=127.0.0.1 perftest "$@"
    local client=$?
    wait %1 && [ $client = 0 ] || grep -q "Can't produce a report" /tmp/server /tmp/client && return
    cat /tmp/server /tmp/client $faults/qps $faults/stats
    exit 1
}

set_faults() {
    for name in drop corrupt duplicate reorder delay_us; do echo 0 > $faults/$name; done
    for fault in "$@"; do echo ${fault#*=} > $faults/${fault%=*}; done
    echo "faults: $*"
}

check within 60 ibv_devinfo -d ferrule0 | tee /results/devinfo
[ "$(cat /sys/class/infiniband/ferrule0/ports/1/gids/1)" = 0000:0000:0000:0000:0000:ffff:0a09:0001 ] || exit 1
for verb in send write read; do
    pair ib_${verb}_lat -s 64 -n 50
    pair ib_${verb}_bw -s 65536 -n 50 -q 2
done
# answers come later than the queue pairs wait for them, so that they ask for most of them again
set_faults delay_us=50000
pair ib_read_bw -s 65536 -n 50 -q 2 -u 11
set_faults

# the connection manager: the device finds itself by its address
rping -s -P -a 10.9.0.1 > /tmp/server 2>&1 &
for ((i = 0; i < 100; i++)); do within 60 rping -c -v -C 10 -a 10.9.0.1 > /tmp/client 2>&1 && break; sleep 0.2; done
[ "$(grep -c 'ping data' /tmp/client)" = 10 ] || { cat /tmp/server /tmp/client; exit 1; }
kill %1; wait %1
# over datagrams, too: the server answers to the addresses that stand before what it received
within 100 udaddy > /tmp/server 2>&1 &
for ((i = 0; i < 100; i++)); do within 60 udaddy -s 10.9.0.1 > /tmp/client 2>&1 && break; sleep 0.2; done
wait %1 && grep -q 'return status 0' /tmp/client || { cat /tmp/server /tmp/client; exit 1; }

check within 300 /lab/verbs_check ferrule0 1 1 rc uc events drained atomics endings attacks greed
if [ "$SLOWER" = 1 ]; then # those kernels have no control groups
    mkdir /cg; mount -t cgroup2 none /cg; echo +rdma > /cg/cgroup.subtree_control; mkdir /cg/few
    echo "ferrule0 hca_object=4" > /cg/few/rdma.max
    (echo 0 > /cg/few/cgroup.procs; exec /lab/verbs_check ferrule0 1 1 rc) 2>&1 | grep 'errno 11' || exit 1
fi
check within 120 /lab/verbs_malice ferrule0 1 1 $faults/inject 3
set_faults drop=200
check within 120 /lab/verbs_check ferrule0 1 2 traffic atomics
set_faults drop=100 corrupt=100 duplicate=200 reorder=500 delay_us=100
check within 120 /lab/verbs_check ferrule0 1 3 traffic atomics
grep . $faults/stats > /results/stats

# what happens can be watched, and its events are as many as the counters say
mount -t tracefs tracefs /sys/kernel/tracing
tracing=/sys/kernel/tracing
watch() { # NAME TEST: its events are in /results/NAME.events, what was counted meanwhile in /results/NAME.counted
    cat $faults/stats > /tmp/before
    echo > $tracing/trace; echo 1 > $tracing/events/ferrule_rdma/enable
    check within 60 /lab/verbs_check ferrule0 1 1 $2
    echo 0 > $tracing/events/ferrule_rdma/enable
    paste -d' ' /tmp/before $faults/stats | awk '{print $1, $4 - $2}' > /results/$1.counted
    cat $tracing/trace > /results/$1.events
}
set_faults
watch good events
watch refused endings
set_faults drop=1000
watch lossy atomics
# nothing arrives any more: the session ends, and another one begins
echo > $tracing/trace; echo 1 > $tracing/events/ferrule_rdma/enable
echo 300 > /sys/module/ferrule_rdma/parameters/dead_ms
set_faults drop=10000
for ((i = 0; i < 300; i++)); do grep -q fer_session_up: $tracing/trace && break; sleep 0.1; done
echo 0 > $tracing/events/ferrule_rdma/enable
cat $tracing/trace > /results/silent.events
echo 3000 > /sys/module/ferrule_rdma/parameters/dead_ms

# as NCCL and JACCL use queue pairs; what is unreliable must not lose anything on a good wire, nor all on a bad one
set_faults
check within 60 /lab/verbs_nccl ferrule0 1 5 1
check within 60 /lab/verbs_jaccl ferrule0 1 5 reduce
for fault in drop=200 corrupt=200 duplicate=500 reorder=1000 delay_us=300; do
    set_faults $fault
    check within 60 /lab/verbs_nccl ferrule0 1 6 1
done
set_faults drop=100 corrupt=100 duplicate=200 reorder=500 delay_us=100
check within 60 /lab/verbs_jaccl ferrule0 1 7 lossy | tee -a /results/lossy

set_faults
/lab/verbs_check ferrule0 1 4 traffic traffic traffic traffic traffic > /tmp/left 2>&1 &
for ((i = 0; i < 600 * SLOWER; i++)); do grep -q ok /tmp/left && break; sleep 0.1; done
rmmod ferrule_rdma || exit 1   # under traffic
wait
[ -z "$(rdma link)" ] || exit 1
modprobe ferrule_rdma loopback=2 && rdma link || exit 1
# soft-RoCE has the same driver id: it must not take our interface for its own, though it takes our devices away
ip link set frl0 up
modprobe rdma_rxe && dmesg | grep 'ferrule.*: set ' && exit 1
rmmod rdma_rxe && [ -z "$(rdma link)" ] && rmmod ferrule_rdma || exit 1
lab-kernel-log > /results/dmesg
"""


def check_events(files: Mapping[str, bytes]) -> None:
    """Check the events in tracefs against the counters and the tests that ran."""

    def seen(name: str, event: str, what: str = "") -> int:
        return len(re.findall(rf"(?m)fer_{event}: .*{what}", files[f"{name}.events"].decode()))

    def counted(name: str, counter: str) -> int:
        return int(dict(line.split() for line in files[f"{name}.counted"].decode().splitlines())[counter])

    assert (seen("good", "send_done", "SUCCESS$"), seen("good", "recv_done", "SUCCESS$")) == (3, 2)
    assert (seen("good", "send_done"), seen("good", "recv_done")) == (3, 2)
    for name in ("good", "refused", "lossy"):
        # an idle rail says each second that it is there, perhaps between the switch and the counters
        assert abs(seen(name, "frame_sent") - counted(name, "tx_frames")) <= 5
        assert abs(seen(name, "frame_received") - counted(name, "rx_frames")) <= 5
        assert seen(name, "frame_again") == counted(name, "resent") + counted(name, "skipped")
        for why in ("late", "missing", "rerouted"):
            assert seen(name, "frame_again", f": {why}$") == counted(name, f"resent_{why}"), why
    assert seen("lossy", "frame_again") > 0
    assert seen("refused", "qp_error", "RNR retry counter exceeded$") == 1
    assert seen("refused", "recv_done", "WR_FLUSH_ERR$") >= 11
    assert seen("silent", "rail_down", "nothing comes any more$") > 0
    assert seen("silent", "session_down", "the last rail is down$") > 0
    assert seen("silent", "session_up", "its first rail is up$") > 0


def carries(lab: VmLab, tmp_path: Path, *, slower: int = 1) -> None:
    """Everything above; a wait may take ``slower`` times as long as on a stock kernel."""
    module = lab.build(DRIVER / "kernel", "ferrule_rdma")
    guest = Guest(
        script="rmmod rdma_rxe; rmmod ferrule_rdma; modprobe ferrule_rdma loopback=1 || exit 1\n" + SCRIPT,
        modules=["rdma_rxe", "ib_uverbs", "rdma_ucm", "thunderbolt", module],
        files=compiled(tmp_path, *PROGRAMS),
        env={"SLOWER": str(slower)},
        memory_mb=3072 if slower > 1 else 2048,
    )
    result = lab.run(guest, DEADLINE * slower).check()
    assert b"PORT_ACTIVE" in result.files["devinfo"]
    stats = dict(line.split() for line in result.files["stats"].decode().splitlines())
    for name in (
        "rx_bad_crc",
        "resent",
        "resent",
        "resent_missing",
        "qp_timeouts",
        "rx_duplicate",
        "rx_out_of_order",
        "nak_access",
    ):
        assert int(stats[name]) > 0, name
    check_events(result.files)
    came, sent = map(int, re.findall(r"(\d+) of (\d+) messages came", result.files["lossy"].decode())[0])
    assert 0 < came < sent
    log = result.files["dmesg"].decode()
    assert not complaints(log), log


@pytest.mark.slow
def test_loopback_device(vm_lab: VmLab, tmp_path: Path) -> None:
    carries(vm_lab, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kernel", DEBUG_KERNELS)
def test_on_kernels_that_check_themselves(kernel: str, tmp_path: Path) -> None:
    carries(machines_with(kernel, RDMA), tmp_path, slower=5)
