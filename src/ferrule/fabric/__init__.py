"""Move arrays between ranks: groups, collectives, rendezvous."""

from ferrule.fabric.coalesce import Coalesced
from ferrule.fabric.describe import GroupInfo, PeerInfo
from ferrule.fabric.group import Group, Reduction
from ferrule.fabric.init import init
from ferrule.fabric.work import Work

__all__ = ["Coalesced", "Group", "GroupInfo", "PeerInfo", "Reduction", "Work", "init"]
