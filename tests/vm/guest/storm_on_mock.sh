#!/bin/bash
# In a guest whose thunderbolt.ko is the mock, with verbs_storm's traffic between both ends of the cable: what STORM
# names happens CYCLES times. Nothing of a device may be left when it is gone, and no request without an answer.
P=/sys/module/thunderbolt/parameters
D=/sys/kernel/debug/ferrule_rdma
EACH=20
I=/sys/class/infiniband

die() {
    echo "cycle $cycle: $*"
    rdma link
    grep -s . $D/*/{rails,stats,qps}
    tail -3 /results/storm 2> /dev/null
    dmesg | tail -30
    exit 1
}

both_active() {
    local states end=$((SECONDS + PATIENCE))
    while ((SECONDS < end)); do
        states=$(cat $I/*/ports/1/state 2> /dev/null)
        [ "$states" = $'4: ACTIVE\n4: ACTIVE' ] && break
        sleep 0.05
    done
    [ "$states" = $'4: ACTIVE\n4: ACTIVE' ] || die "not both are active"
    for end in 0 1; do
        ip link set frl-host-$end up
        ip addr replace 10.9.$end.1/24 dev frl-host-$end
    done
}

traffic() { # KIB: until so much more has gone over the cable
    local bytes goal end=$((SECONDS + PATIENCE))
    read -r bytes < $P/bytes
    goal=$((bytes + 1024 * $1))
    while ((SECONDS < end)); do
        read -r bytes < $P/bytes
        [ "$bytes" -ge $goal ] && return
        kill -0 $storm || die "the traffic's program has ended"
        sleep 0.02
    done
    die "no traffic"
}

load() { modprobe ferrule_rdma dead_ms=$DEAD_MS; }

gone() { # no device, and nothing of one
    local end=$((SECONDS + PATIENCE))
    while ((SECONDS < end)); do
        [ -z "$(ls $I $D 2> /dev/null | grep ferrule-)$(ls /sys/class/net | grep frl)" ] && return
        sleep 0.05
    done
    die "still there: $(ls $I $D /sys/class/net)"
}

pause() { sleep 0.$((RANDOM % 3))$((RANDOM % 10)); }

at_work() { # in most cycles while traffic runs, in some in the middle of anything
    if ((cycle % 4)); then both_active; traffic $((100 + RANDOM % 1000)); else pause; fi
}

plug() {
    at_work
    echo 0 > $P/plugged
    gone
    echo 1 > $P/plugged
}

reload() {
    at_work
    rmmod ferrule_rdma || die "rmmod"
    gone
    load || die "modprobe"
}

# who takes all devices of soft-RoCE's driver id away
rxe() {
    at_work
    both_active
    modprobe rdma_rxe && rdma link add rxe0 type rxe netdev anchor || die "soft-RoCE"
    traffic 100
    dmesg | grep 'ferrule.*: set ' && die "soft-RoCE takes our devices for its own"
    # where the kernel has lockdep, a device's sockets hold the module
    rmmod rdma_rxe || { rdma link delete rxe0 && rmmod rdma_rxe; } || die "rmmod rdma_rxe"
    gone
    rmmod ferrule_rdma && load || die "reload"
}

# one host falls silent, without BYE, and is there again
silence() {
    both_active
    traffic 100
    echo $((cycle % 2)) > $P/mute
    local end=$((SECONDS + PATIENCE))
    while ((SECONDS < end)) && grep -qs ACTIVE $I/*/ports/1/state; do sleep 0.05; done
    grep -qs ACTIVE $I/*/ports/1/state && die "still active"
    pause
    echo -1 > $P/mute
}

# each request of the session's beginning comes after copies of it with anything in them, and so do their answers
garble() {
    at_work
    echo 20 > $P/garble
    echo 0 > $P/plugged
    gone
    echo 1 > $P/plugged
    sleep 1
    pause
    echo 0 > $P/garble
    both_active
}

# it was loaded only so that it is at hand, and takes our devices with it
rmmod rdma_rxe && rmmod ferrule_rdma && load || die "modules"
ip link add anchor type dummy
ip link set anchor up
dmesg -c > /dev/null
both_active
before=$(rdma resource)
for ((side = 0; side < 2; side++)); do cat $D/ferrule-host-$side/owners; done > /tmp/owners
timeout 7200 /lab/verbs_storm ferrule-host-0,ferrule-host-1 1 1 /tmp/stop > /results/storm 2>&1 &
storm=$!
for ((cycle = 1; cycle <= CYCLES; cycle++)); do
    $STORM
    ((cycle % EACH)) || echo "$(cut -d' ' -f1 /proc/uptime) $STORM $cycle"
done
both_active
traffic 300
touch /tmp/stop
wait $storm || { cat /results/storm; die "a request was not answered"; }
cat /results/storm
timeout 300 /lab/verbs_crash ferrule-host-0,ferrule-host-1 1 1 "$CRASHES" || die "a process that is left alone"
timeout 60 /lab/verbs_nccl ferrule-host-0,ferrule-host-1 1 1 1 || die "later ones"
left=$(rdma resource)
[ "$(sed 's/^[0-9]*: //' <<< "$left")" = "$(sed 's/^[0-9]*: //' <<< "$before")" ] || die "before: $before now: $left"
for ((side = 0; side < 2; side++)); do cat $D/ferrule-host-$side/owners; done | cmp - /tmp/owners || die "owners"
rmmod ferrule_rdma && rmmod thunderbolt || die "rmmod"
[ ! -e $D ] || die "debugfs"
lab-kernel-log > /results/dmesg
