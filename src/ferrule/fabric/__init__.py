"""Move arrays between ranks: groups, collectives, rendezvous."""

from ferrule.fabric.arrays import DTYPE_BYTES
from ferrule.fabric.coalesce import Coalesced
from ferrule.fabric.core import close_all
from ferrule.fabric.describe import GroupInfo, PeerInfo
from ferrule.fabric.device_memory import DeviceArray
from ferrule.fabric.group import Group
from ferrule.fabric.init import init
from ferrule.fabric.operations import Reduction
from ferrule.fabric.work import Work

__all__ = [
    "DTYPE_BYTES",
    "Coalesced",
    "DeviceArray",
    "Group",
    "GroupInfo",
    "PeerInfo",
    "Reduction",
    "Work",
    "close_all",
    "init",
]
