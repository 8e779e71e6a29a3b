"""Every finding of `examine` by its id: what it means and what helps, in a line each. docs/doctor.md has this table."""

from __future__ import annotations

from ferrule.links.doctor.catalogue import Entry

MEASURED: dict[str, Entry] = {
    "probe-no-link": Entry("error", "no two interfaces are up and on one subnet", "addresses in one subnet"),
    "probe-stall": Entry("error", "the link is up, and nothing arrives at either end", "replug both ends"),
    "probe-one-way": Entry("error", "frames pass in one direction only", "replug both ends; another cable"),
    "probe-blocked": Entry("error", "frames pass both ways, but no connection comes about", "open the firewall"),
    "probe-large": Entry("error", "small messages pass, large ones get stuck", "the same MTU at both ends"),
    "probe-no-rdma": Entry(
        "warning", "both ends have RDMA on the link, and it does not work", "`ferrule doctor` on both"
    ),
    "probe-collapse": Entry(
        "error",
        "both ways at once, together, get less than one way alone, or one of them hardly anything",
        "replug both ends; a newer kernel, another socket",
    ),
    "probe-shared": Entry(
        "warning", "both directions share the link, as with half duplex", "duplex, PCIe width, other programs"
    ),
    "probe-limited": Entry(
        "note",
        "the processors were the limit under load both ways, so nothing is known of the cable",
        "nothing else running",
    ),
    "probe-slow": Entry("warning", "it carries far less than the cable trained at", "replug both ends; PCIe width"),
    "probe-slower": Entry("warning", "it carries far less than when it was measured last", "replug both ends"),
    "probe-asymmetric": Entry("warning", "one direction is much slower than the other", "replug both ends"),
    "probe-latency": Entry(
        "warning", "messages take so long that tensor parallelism suffers", "RDMA, or `--pp` instead of `--tp`"
    ),
}
