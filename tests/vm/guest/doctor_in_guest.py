"""The doctor's findings on this guest, and its cables, as JSON."""

from __future__ import annotations

import json
import sys

from ferrule.links import Probe
from ferrule.links.doctor import diagnose

inventory = Probe.live().inventory()
json.dump(
    {
        "peers": [
            {
                "domain": domain.name,
                "controller": domain.pci_address,
                "device": peer.device,
                "lanes": [peer.rx_lanes, peer.tx_lanes],
                "gbps": [peer.rx_speed_gb_s, peer.tx_speed_gb_s],
                "netdevs": list(peer.netdevs),
            }
            for domain in inventory.thunderbolt
            for peer in domain.peers
        ],
        "domains": [domain.name for domain in inventory.thunderbolt],
        "findings": [[one.id, one.severity, one.subject] for one in diagnose([inventory])],
    },
    sys.stdout,
)
