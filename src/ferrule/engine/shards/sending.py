"""Process that sends a model's files, or receives those of a rank:
``python -m ferrule.process.lifeline ferrule.engine.shards.sending OPTIONS_JSON CONTROL_FD``.

Where no rank will be on a host that has the files, such processes come first: one on the host of each rank, in their
order, and one more on a host that has the files. What is received is kept, and the ranks find it.
"""

from __future__ import annotations

import sys

from ferrule import fabric
from ferrule.engine.options import STEP_TIMEOUT, RankOptions
from ferrule.engine.shards.adapters import obtain_adapters
from ferrule.engine.shards.obtain import obtain
from ferrule.errors import FerruleError
from ferrule.process.lifeline import Lifeline


def main(arguments: list[str], line: Lifeline) -> int:
    options = RankOptions.from_json(arguments[0])
    try:
        with fabric.init(strict=True, timeout=STEP_TIMEOUT, meet_timeout=options.meet_seconds) as world:
            obtain(world, options, lambda progress: None)
            obtain_adapters(world, options.adapters)
    except FerruleError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0
