"""Start, hold, watch and end processes. `ferrule.process.lifeline` and `ferrule.process.standby` are programs."""

from ferrule.process.children import Children, start
from ferrule.process.cores import pin_to_free_cores
from ferrule.process.orphans import adopt_orphans, kill_orphans, reap_orphans
from ferrule.process.output import Output, Outputs, last_line
from ferrule.process.ready import NotReady, start_until_ready
from ferrule.process.sensor import Sensor
from ferrule.process.system import boot_id, end_groups, signal_group, usable_cores, when_ended
from ferrule.process.tied import tied

__all__ = [
    "Children",
    "NotReady",
    "Output",
    "Outputs",
    "Sensor",
    "adopt_orphans",
    "boot_id",
    "end_groups",
    "kill_orphans",
    "last_line",
    "pin_to_free_cores",
    "reap_orphans",
    "signal_group",
    "start",
    "start_until_ready",
    "tied",
    "usable_cores",
    "when_ended",
]
