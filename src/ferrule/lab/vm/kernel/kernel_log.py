"""Finds errors and warnings in a kernel's log. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WRONG = re.compile(
    r"WARNING|(?<!DE)BUG\b|Oops|Call Trace|[Gg]eneral protection fault|Kernel panic|Unable to handle"
    r"|INFO: (task|rcu|possible|trying)|possible (circular|recursive|irq lock|unsafe|deadlock)|inconsistent lock state"
    r"|suspicious RCU usage|sleeping function called|scheduling while atomic|bad unlock balance|held lock freed"
    r"|KASAN|KCSAN|UBSAN:|ODEBUG:|refcount_t:|unreferenced object|list_(add|del) corruption"
    r"|unregister_netdevice: waiting|soft lockup|disagrees about version"
    r"|turning off the locking correctness validator|leak detector disabled|DMA-API: debugging out of memory"
)
_RACE = re.compile(r"KCSAN: .* in (.*)")
_STOCK = (r"WARNING: .*skbuff\.h:\d+ (at )?tbnet_start_xmit\+",)
"""Known faults of stock drivers. thunderbolt_net asks each packet where its transport header is before it looks whether
it needs that, and CONFIG_DEBUG_NET tells of packets that have none, such as those of ARP."""


def complaints(log: str, allowed: Sequence[str] = ()) -> list[str]:
    """The lines in which a kernel says that something is wrong, or that one of its checkers gave up.

    Not counted: data races in which no module takes part, which are the stock kernel's own (there are many, most of
    them on purpose), known faults of stock drivers, and lines in which one of the regular expressions ``allowed`` is
    found, with the call trace below one that begins with a warning.
    """
    found = []
    excused = False  # within the report of a warning that is allowed
    for line in log.splitlines():
        excused = excused and "end trace" not in line
        race = _RACE.search(line)
        if (race and "[" not in race[1]) or not _WRONG.search(line) or (excused and "Call Trace:" in line):
            continue
        if any(re.search(each, line) for each in (*_STOCK, *allowed)):
            excused = "WARNING:" in line
        else:
            found.append(line)
    return found


def stood_still(log: str, own: Sequence[str]) -> bool:
    """Whether a processor of a kernel that said ``log`` stood still, and none of the modules ``own`` was in its calls:
    nested virtualization at times loses an interrupt between processors, and then one waits for the other for ever."""
    return "BUG: soft lockup" in log and not any(re.search(rf"\[{name}[\] ]", log) for name in own)
