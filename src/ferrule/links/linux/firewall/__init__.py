"""The packet filters of Linux: nftables, iptables, ufw, firewalld."""

from ferrule.links.linux.firewall.filters import COMMANDS, FIREWALL_UNITS, read_firewalls
from ferrule.links.linux.firewall.firewalld import ZONES
from ferrule.links.linux.firewall.iptables import IPTABLES
from ferrule.links.linux.firewall.nftables import NFT, NFT_LINES
from ferrule.links.linux.firewall.ufw import UFW, UFW_DEFAULTS

__all__ = [
    "COMMANDS",
    "FIREWALL_UNITS",
    "IPTABLES",
    "NFT",
    "NFT_LINES",
    "UFW",
    "UFW_DEFAULTS",
    "ZONES",
    "read_firewalls",
]
