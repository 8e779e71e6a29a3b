"""A real packet filter in a lab's host: what the doctor says of its rules is what happens to a connection."""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tree_builder import probe_of

from ferrule.lab import Lab, pair
from ferrule.links import Finding, Inventory
from ferrule.links.doctor import diagnose

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("emulated_hosts")]

NFT = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
SECONDS = 30.0
RULES = """
table inet filter {
  chain input {
    type filter hook input priority filter; policy accept;
    ct state established,related accept
    iifname "lo" accept
    tcp dport 22 accept
    iifname { "cable0", "eth9" } jump cables
  }
  chain cables {
    ip saddr 10.77.0.0/24 tcp dport 1024-65535 counter reject with tcp reset
  }
}
"""


def run(lab: Lab, argv: Sequence[str], text: str | None = None) -> str:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = lab.popen(0, argv, text=True, **pipes)  # type: ignore[arg-type]
    told, error = process.communicate(text, timeout=SECONDS)
    assert process.returncode == 0, error
    return str(told)


def read(lab: Lab) -> Inventory:
    """Host 0; its cable is a virtual interface, which the doctor would not take for one."""
    told = run(lab, [sys.executable, "-m", "ferrule", "links", "record", "--plain", "-"])
    found = probe_of("host", json.loads(told)).inventory()
    assert found.netdev("cable0")
    kinds = {"cable0": "ethernet", "cable1": "ethernet"}
    netdevs = (dataclasses.replace(one, kind=kinds.get(one.name, one.kind)) for one in found.netdevs)
    return dataclasses.replace(found, netdevs=tuple(netdevs))


def rules_against(inventory: Inventory) -> list[Finding]:
    return [one for one in diagnose([inventory]) if one.id.startswith("firewall")]


def connects(lab: Lab, cable: int) -> bool:
    """From host 1 to a port that the system chose on host 0."""
    with lab.inside(0):
        listener = socket.create_server((f"10.77.{cable}.1", 0))
    with listener:
        port = listener.getsockname()[1]
        with lab.inside(1):
            try:
                socket.create_connection((f"10.77.{cable}.1", port), timeout=SECONDS).close()
            except ConnectionRefusedError:
                return False
        return True


@pytest.mark.skipif(NFT is None, reason="nftables is not installed")
def test_a_rule_of_nftables_is_found_and_its_cure_cures() -> None:
    assert NFT is not None
    with Lab(pair(cables=2)) as lab:
        assert (connects(lab, 0), connects(lab, 1)) == (True, True)
        assert rules_against(read(lab)) == []

        run(lab, [NFT, "-f", "-"], RULES)
        assert (connects(lab, 0), connects(lab, 1)) == (False, True)
        (found,) = rules_against(read(lab))
        assert (found.id, found.severity, found.subject) == ("firewall-rule", "error", "cable0")
        where, line = found.evidence[0]
        assert where == "$ nft -a -t list ruleset"
        assert line.startswith("ip saddr 10.77.0.0/24 tcp dport 1024-65535 counter packets")
        assert line.endswith("reject with tcp reset")

        (command,) = found.cure[0].commands
        assert command == "sudo nft insert rule inet filter input iifname cable0 accept"
        run(lab, [NFT, *command.split()[2:]])
        assert connects(lab, 0)
        assert rules_against(read(lab)) == []
