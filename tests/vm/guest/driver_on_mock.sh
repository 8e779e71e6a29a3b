#!/bin/bash
# In a guest whose thunderbolt.ko is the mock: both ends of a cable are devices of ours in one kernel. They find each
# other, carry data through faults, fail what is posted when the cable is pulled, and are back with it.
P=/sys/module/thunderbolt/parameters
D=/sys/kernel/debug/ferrule_rdma

both_active() {
    for ((i = 0; i < 600; i++)); do [ "$(rdma link | grep -c ACTIVE)" = 2 ] && break; sleep 0.1; done
    [ "$(rdma link | grep -c ACTIVE)" = 2 ] || { echo "not both are active:"; rdma link; dmesg | tail; exit 1; }
    for end in 0 1; do
        ip link set frl-host-$end up
        ip addr replace 10.9.$end.1/24 dev frl-host-$end
    done
}

listens() {
    for ((i = 0; i < 600; i++)); do grep -q ':4853 .* 0A' /proc/net/tcp && return; sleep 0.1; done
    exit 1
}

perftest() { timeout 120 "$@" > "/tmp/$side" 2>&1; }

# When its work is done perftest measures the processor's clock, and one side gives up where a crowded host makes that
# uneven; the other one then misses its last words.
pair() {
    side=server perftest "$@" -u 18 -d ferrule-host-0 -x 1 &
    listens
    side=client perftest "$@" -u 18 -d ferrule-host-1 -x 1 127.0.0.1
    local client=$?
    wait %1 && [ $client = 0 ] || grep -q "Can't produce a report" /tmp/server /tmp/client ||
        { cat /tmp/server /tmp/client $D/*/{rails,stats,qps}; exit 1; }
    echo "$(cut -d' ' -f1 /proc/uptime) $*"
}

both_active
ibv_devinfo -d ferrule-host-0 > /results/devinfo || exit 1
realpath /sys/class/infiniband/ferrule-host-0/device > /results/parent
cat /sys/class/net/frl-host-0/address > /results/address
pair ib_write_lat -s 64 -n 50
pair ib_send_bw -s 65536 -n 30
for fault in drop corrupt duplicate reorder lose_interrupts; do echo 40 > $P/${fault}_every; done
pair ib_read_bw -s 65536 -n 30
pair ib_write_bw -s 65536 -n 30
for fault in drop corrupt duplicate reorder lose_interrupts; do echo 0 > $P/${fault}_every; done
cat $D/ferrule-host-0/stats > /results/stats

# every request of a process comes back when the cable is pulled, and the process goes on with the next device
timeout 240 /lab/verbs_storm ferrule-host-0,ferrule-host-1 1 1 /tmp/stop > /tmp/storm 2>&1 &
storm=$!
read -r before < $P/bytes
for ((i = 0; i < 600; i++)); do
    read -r bytes < $P/bytes
    ((bytes > before + 500000)) && break
    sleep 0.1
done
timeout 60 ib_write_bw -d ferrule-host-0 -x 1 -D 30 > /dev/null 2>&1 &
server=$!
listens
timeout 60 ib_write_bw -d ferrule-host-1 -x 1 -D 30 127.0.0.1 > /tmp/client 2>&1 &
writer=$!
for ((i = 0; i < 600; i++)); do
    [ "$(awk '{print $7}' $D/ferrule-host-1/rails)" -gt 3000000 ] && break
    sleep 0.1
done
echo 0 > $P/plugged
[ -z "$(rdma link)" ] || exit 1
wait $writer && exit 1  # it was told
kill $server 2> /dev/null
wait $server
echo 1 > $P/plugged
both_active
sleep 0.2
touch /tmp/stop
wait $storm && grep ' [1-9][0-9]* not done, [1-9][0-9]* devices' /tmp/storm || { cat /tmp/storm; exit 1; }
cat /sys/class/net/frl-host-0/address > /results/address_again
pair ib_send_lat -s 64 -n 20
rmmod ferrule_rdma || exit 1
modprobe ferrule_rdma || exit 1
both_active

# a connection is being made when the peer falls silent: its datagrams must not hold the device when that is to go
timeout 60 rping -c -C 1 -a 10.9.1.7 > /tmp/client 2>&1 &
echo 0 > $P/mute
for ((i = 0; i < 200; i++)); do rdma link | grep -q ACTIVE || break; sleep 0.1; done
sleep 2
echo 0 > $P/plugged
for ((i = 0; i < 200; i++)); do [ -z "$(rdma link)" ] && break; sleep 0.1; done
[ -z "$(rdma link)" ] || { echo "still there:"; rdma link; cat /tmp/client; exit 1; }
wait
rmmod ferrule_rdma && rmmod thunderbolt || exit 1
dmesg > /results/dmesg
