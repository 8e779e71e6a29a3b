"""Files of the system that come with the driver, the same by `ferrule driver install` and in the .deb package."""

from __future__ import annotations

OPTIONS = "/etc/modprobe.d/ferrule-rdma.conf"
OPTIONS_MODE = 0o600
"""Only root may read it: it may hold the key that both ends of a cable must know."""
OPTIONS_TEXT = """\
# Options of the kernel module ferrule_rdma (docs/driver.md); `modinfo -p ferrule_rdma` lists them. What you change here
# stays when the driver is updated or taken away.
#options ferrule_rdma key=a-secret-that-both-ends-have dead_ms=3000

# Programs reach RDMA devices through ib_uverbs.
softdep ferrule_rdma pre: ib_uverbs
"""

LOAD = "/etc/modules-load.d/ferrule-rdma.conf"
LOAD_TEXT = """\
# The RDMA device of a USB4 cable comes up when both of its ends have this module.
ferrule_rdma
"""
