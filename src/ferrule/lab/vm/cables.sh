#!/bin/bash
# In a guest with USB4 cables, as `lab-cables`: gives each cable's interface its address when it appears, as a network
# manager does; with LAB_RXE a soft-RoCE device, too, that has the cable's name. /lab/cables has a line for each: PCI
# address of the controller, route to the peer, cable, own address, the peer's. With LAB_DRIVER the interfaces of our
# driver's devices get theirs: /lab/devices has a line for each peer.
#   lab-cables          settle what is there, and go on doing so
#   lab-cables up NAME SECONDS   wait until the cable NAME (or: all) has a carrier and the peer answers
#   lab-cables show     cable, interface, address, the peer's address
#   lab-cables device   the RDMA device of the first cable

interface() { # the interface of the peer with the route $2 at the controller $1, if it is there
    local path
    for path in /sys/bus/pci/devices/"$1"/domain*/*-0/*-"$2"/*.*/net/*; do
        [ ! -e "$path" ] || echo "${path##*/}"
    done
}

settled() { # the interface $1 of the cable $2; without a new process, as this is asked often
    local flags
    { read -r flags < /sys/class/net/"$1"/flags; } 2> /dev/null
    ((flags & 1)) && { [ -z "$LAB_RXE" ] || [ -e /sys/class/infiniband/"$2" ]; }
}

settle() {
    local slot route cable address peer name
    while read -r slot route cable address peer; do
        name=$(interface "$slot" "$route")
        [ -n "$name" ] && ! settled "$name" "$cable" || continue
        ip link property add dev "$name" altname "$cable" 2> /dev/null
        ip address replace "$address" dev "$name"
        ip link set "$name" up
        [ -z "$LAB_RXE" ] || rdma link show "$cable/1" > /dev/null 2>&1 ||
            rdma link add "$cable" type rxe netdev "$name"
    done < /lab/cables
}

settle_devices() {
    local device name address peer
    [ -n "$LAB_DRIVER" ] || return
    while read -r device name address peer; do
        [ -e /sys/class/net/"$name" ] && ! settled "$name" "$device" || continue
        ip address replace "$address" dev "$name"
        ip link set "$name" up
    done < /lab/devices
}

up() { # CABLE SECONDS
    local slot route cable address peer device name end=$((SECONDS + $2))
    while read -r slot route cable address peer; do
        [ "$1" = all ] || [ "$1" = "$cable" ] || continue
        until ping -c 1 -W 1 "$peer" > /dev/null 2>&1; do
            if [ $SECONDS -ge $end ]; then
                echo "$cable: the peer $peer did not answer within $2 s; its interface here: $(interface "$slot" "$route")" >&2
                return 1
            fi
            sleep 0.1
        done
    done < /lab/cables
    [ -n "$LAB_DRIVER" ] || return 0
    while read -r device name address peer; do
        # its port is up, and its address has become a GID
        until grep -q ACTIVE /sys/class/infiniband/"$device"/ports/1/state 2> /dev/null &&
            grep -q '[1-9a-f]' /sys/class/infiniband/"$device"/ports/1/gids/1 2> /dev/null; do
            if [ $SECONDS -ge $end ]; then
                echo "$device: the RDMA device did not come up within $2 s; the log says: $(dmesg | grep ferrule | tail -n 3)" >&2
                return 1
            fi
            sleep 0.1
        done
    done < /lab/devices
}

device() {
    local slot route cable address peer name
    read -r slot route cable address peer < /lab/cables
    read -r name _ < /lab/devices
    [ -z "$LAB_DRIVER" ] || cable=$name
    echo "$cable"
}

case $1 in
    up) up "$2" "$3" ;;
    device) device ;;
    show)
        while read -r slot route cable address peer; do
            echo "$cable $(interface "$slot" "$route") $address $peer"
        done < /lab/cables
        ;;
    *)
        # guests stand still for seconds while the machine is busy
        [ -z "$LAB_DRIVER" ] || echo 15000 > /sys/module/ferrule_rdma/parameters/dead_ms
        settle
        settle_devices
        ip -o monitor link | {
            until read -r -t 1 _; do ip link set lo alias lab; done # it listens when it tells of that
            settle                                                  # what appeared before
            settle_devices
            while read -r _; do
                settle
                settle_devices
            done
        }
        ;;
esac
