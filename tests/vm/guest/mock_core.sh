#!/bin/bash
# In a guest whose thunderbolt.ko is the mock: the distribution's own thunderbolt_net.ko makes a link of it, which
# pings, carries TCP unharmed by faults, and survives unplugging, replugging and unloading.
set -e
set -o pipefail
P=/sys/module/thunderbolt/parameters

join() { # one interface into each network namespace
    local names side=0 name
    for try in {1..100}; do
        names=$(ls /sys/class/net | grep thunderbolt || true)
        [ "$(wc -w <<< "$names")" = 2 ] && break
        sleep 0.1
    done
    for name in $names; do
        side=$((side + 1))
        ip link set "$name" netns host$side
        ip -n host$side addr add 10.9.0.$side/24 dev "$name"
        ip -n host$side link set "$name" up
    done
    for try in {1..100}; do
        ip netns exec host1 ping -c 1 -W 1 10.9.0.2 > /dev/null 2>&1 && return
        sleep 0.1
    done
    echo "the hosts do not reach each other"
    return 1
}

carry() { # KIB: so much arrives unharmed over TCP
    head -c "$1"k /dev/urandom > /tmp/sent
    ip netns exec host2 timeout 60 nc -l -p 9000 <> /tmp/never > /tmp/came & # which never ends of itself
    until ip netns exec host2 cat /proc/net/tcp /proc/net/tcp6 | grep -q ':2328 .* 0A '; do kill -0 $!; sleep 0.1; done
    ip netns exec host1 timeout 60 nc 10.9.0.2 9000 < /tmp/sent
    wait $!
    cmp /tmp/sent /tmp/came
}

mean() { # the mean time of a ping, in microseconds
    ip netns exec host1 ping -c 5 -i 0.2 10.9.0.2 | sed -n 's|.*/\([0-9]*\)\.\([0-9]*\)/.*|\1\2|p'
}

mkfifo /tmp/never
ip netns add host1
ip netns add host2
cat /sys/bus/thunderbolt/devices/0-1/rx_lanes > /results/lanes
join
mean > /results/fast
echo 20000 > $P/delay_us
mean > /results/slow
echo 0 > $P/delay_us
carry 4096
for fault in drop corrupt duplicate reorder; do
    echo 40 > $P/${fault}_every
    carry 256
    echo 0 > $P/${fault}_every
done
cat $P/dropped > /results/dropped
echo 0 > $P/mute
if ip netns exec host1 ping -c 2 -W 1 10.9.0.2 > /dev/null; then echo "a mute host is heard"; exit 1; fi
echo -1 > $P/mute

echo 0 > $P/plugged
ls /sys/bus/thunderbolt/devices > /results/unplugged
ip -n host1 link show | grep -c thunderbolt > /results/left || true
echo 1 > $P/lanes
echo 1 > $P/plugged
cat /sys/bus/thunderbolt/devices/0-1/rx_lanes > /results/half
join
carry 256
for cycle in {1..20}; do
    echo 0 > $P/plugged
    echo 1 > $P/plugged
done
join
rmmod thunderbolt_net
rmmod thunderbolt
lab-kernel-log > /results/dmesg
