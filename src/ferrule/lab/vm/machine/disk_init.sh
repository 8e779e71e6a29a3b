#!/bin/bash
# In place of the guest's first process: the system on its disk starts, by its own init, and runs the script when it is up.
for ((try = 0; try < 100; try++)); do
    [ ! -b /dev/vda ] || break
    sleep 0.1
done
mkdir -p /mnt
mount -t ext4 /dev/vda /mnt || poweroff -f
mkdir -p /run/results /run/systemd/system/multi-user.target.wants
cp -a /lab /run/lab
cat > /run/lab/run << 'END'
#!/bin/bash
. /run/lab/environment
cd /root
echo "lab: script starts, kernel $(uname -r)"
/run/lab/script
status=$?
echo "lab: script ended with status $status"
echo $status > /run/lab/status
port=$(grep -lx lab.results /sys/class/virtio-ports/*/name)
port=${port%/name}
tar -C /run -cf - lab/status results > "/dev/${port##*/}"
systemctl --no-block poweroff
END
chmod 755 /run/lab/run
cat > /run/systemd/system/lab.service << 'END'
[Unit]
Description=What this guest is for
[Service]
ExecStart=/run/lab/run
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
END
ln -s /dev/null "/run/systemd/system/serial-getty@ttyS0.service" # no login there
ln -s ../lab.service /run/systemd/system/multi-user.target.wants/
for each in dev proc sys run; do mount --move "/$each" "/mnt/$each"; done
exec switch_root /mnt /sbin/init
