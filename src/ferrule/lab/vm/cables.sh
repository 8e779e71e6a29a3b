#!/bin/bash
# In a guest with USB4 cables, as `lab-cables`: gives each cable's interface its address when it appears, as a network
# manager does; with LAB_RXE a soft-RoCE device, too, that has the cable's name. /lab/cables has a line for each: PCI
# address of the controller, route to the peer, cable, own address, the peer's.
#   lab-cables          settle what is there, and go on doing so
#   lab-cables up NAME SECONDS   wait until the cable NAME (or: all) has a carrier and the peer answers
#   lab-cables show     cable, interface, address, the peer's address

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

up() { # CABLE SECONDS
    local slot route cable address peer end=$((SECONDS + $2))
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
}

case $1 in
    up) up "$2" "$3" ;;
    show)
        while read -r slot route cable address peer; do
            echo "$cable $(interface "$slot" "$route") $address $peer"
        done < /lab/cables
        ;;
    *)
        settle
        ip -o monitor link | {
            until read -r -t 1 _; do ip link set lo alias lab; done # it listens when it tells of that
            settle                                                  # what appeared before
            while read -r _; do settle; done
        }
        ;;
esac
