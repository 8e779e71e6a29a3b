#!/bin/bash
# The guest's first process: file systems, modules, the script; sends what it left in /results, then powers off.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
hostname "$(cat /etc/hostname)"

status=0
while read -r module; do
    modprobe "$module" || { echo "lab: modprobe $module failed"; status=125; }
done < /lab/modules
ip link set lo up
. /lab/environment
cd /root || status=125

port() { # NAME: the device of the port that the host calls so; the kernel finds them one after the other
    local each try
    for try in {1..100}; do
        each=$(grep -lx "lab.$1" /sys/class/virtio-ports/*/name 2> /dev/null)
        [ -z "$each" ] || break
        sleep 0.1
    done
    each=${each%/name}
    echo "/dev/${each##*/}"
}

serve() { # NUMBER: run what the host sends, one command after the other (session.py has the protocol)
    local mark script end
    exec 3<> "$(port "session$1")" 4> "$(port "errors$1")"
    while :; do
        read -r -u 3 mark script end || { sleep 1; continue; }
        [ "$end" = end ] || continue
        setsid bash -c "$(base64 -d <<< "$script")" < /dev/null >&3 2>&4 3>&- 4>&- &
        echo $! > "/run/lab/job$1"
        wait $! 2> /dev/null
        printf '\n%s %d\n' "$mark" $? >&3
    done
}

if [ -e /lab/disk_init ] && [ $status = 0 ]; then
    exec /lab/disk_init
fi
echo "lab: script starts, kernel $(uname -r)"
if [ $status = 0 ]; then
    /lab/script
    status=$?
fi
echo "lab: script ended with status $status"

read -r sessions < /lab/sessions
if [ "$sessions" -gt 0 ] && [ $status = 0 ]; then
    mkdir -p /run/lab
    mkfifo /run/lab/stop
    for ((each = 0; each < sessions; each++)); do
        serve $each &
    done
    read -r _ < /run/lab/stop
fi

echo $status > /lab/status
tar -C / -cf - lab/status results > "$(port results)"
poweroff -f
