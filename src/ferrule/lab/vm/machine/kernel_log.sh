#!/bin/bash
# In a guest, as `lab-kernel-log`: what its kernel has logged, and what is leaked where it looks for that (kmemleak).
leaks=/sys/kernel/debug/kmemleak
if [ -e $leaks ]; then
    echo scan > $leaks
    sleep 6 # what is younger than five seconds may have its only pointer in a register
    echo scan > $leaks
fi
dmesg
[ ! -e $leaks ] || cat $leaks
