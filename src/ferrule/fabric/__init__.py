"""Move arrays between ranks: groups, collectives, rendezvous."""

from ferrule.fabric.describe import GroupInfo, PeerInfo
from ferrule.fabric.group import Group, Reduction
from ferrule.fabric.init import init

__all__ = ["Group", "GroupInfo", "PeerInfo", "Reduction", "init"]
