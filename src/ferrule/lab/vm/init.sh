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

status=0
while read -r module; do
    modprobe "$module" || { echo "lab: modprobe $module failed"; status=125; }
done < /lab/modules
ip link set lo up
hostname guest
. /lab/environment
cd /root || status=125

echo "lab: script starts, kernel $(uname -r)"
if [ $status = 0 ]; then
    /lab/script
    status=$?
fi
echo "lab: script ended with status $status"

echo $status > /lab/status
for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name")" = lab.results ] && tar -C / -cf - lab/status results > "/dev/${port##*/}"
done
poweroff -f
