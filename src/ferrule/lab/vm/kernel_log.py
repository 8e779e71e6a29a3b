"""What in a kernel's log says that something is wrong with it. Pure."""

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


def complaints(log: str, allowed: Sequence[str] = ()) -> list[str]:
    """The lines in which a kernel says that something is wrong, or that one of its checkers gave up.

    Not counted: data races in which no module takes part, which are the stock kernel's own (there are many, most of
    them on purpose), and lines in which one of the regular expressions ``allowed`` is found.
    """
    found = []
    for line in log.splitlines():
        race = _RACE.search(line)
        if (race and "[" not in race[1]) or not _WRONG.search(line):
            continue
        if not any(re.search(each, line) for each in allowed):
            found.append(line)
    return found
