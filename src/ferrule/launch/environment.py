"""The environment of a rank, for Ferrule, torch, MLX and NCCL or RCCL; pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ferrule.config import rank_variables
from ferrule.launch.facts import HostFacts, RdmaFace
from ferrule.launch.job import Job, Site, common_faces, faces_toward, joined_by, meeting_addresses, quickest
from ferrule.secure import write_address

RING_PORT = "MLX_HOSTFILE"
DEVICES = "MLX_IBV_DEVICES"


def ferrule_env(job: Job, rank: int) -> dict[str, str]:
    """Variables by which the fabric's ranks find each other; several addresses where several cables lead to rank 0."""
    addresses = meeting_addresses(job, job.site(rank))
    places = (write_address((address, job.sites[0].ports[0])) for address in addresses)
    return rank_variables(rank, job.size, places, job.key)


def torch_env(job: Job, rank: int) -> dict[str, str]:
    """Variables that torchrun sets, as far as scripts read them."""
    site = job.site(rank)
    host = job.sites.index(site)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(job.size),
        "LOCAL_RANK": str(site.ranks.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(site.ranks)),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(len(job.sites)),
        "NODE_RANK": str(host),
        "MASTER_ADDR": meeting_addresses(job, site)[0],
        "MASTER_PORT": str(job.sites[0].ports[1]),
    }


def torch_defaults(job: Job, site: Site) -> dict[str, str]:
    """Defaults unless the user has set them: a fair share of the cores, and the interface that gloo takes."""
    env = {"OMP_NUM_THREADS": str(max(1, site.facts.cores // len(site.ranks)))} if len(site.ranks) > 1 else {}
    names = _socket_interfaces(job, site)
    if names:
        env["GLOO_SOCKET_IFNAME"] = env["TP_SOCKET_IFNAME"] = names[0]
    return env


def nccl_defaults(job: Job, site: Site) -> dict[str, str]:
    """Interfaces and RDMA ports by their exact names, for NCCL and RCCL: those that lead to all hosts of the job."""
    env = {}
    names = _socket_interfaces(job, site)
    if names:
        env["NCCL_SOCKET_IFNAME"] = f"={','.join(names)}"
    if not job.alone:
        if all(_rdma_ports(one, job.sites) for one in job.sites):
            env["NCCL_IB_HCA"] = _exactly(_rdma_ports(site, job.sites))
        else:
            env["NCCL_IB_DISABLE"] = "1"
    return env


def nccl_of_one(facts: HostFacts) -> dict[str, str]:
    """The same where the other hosts are not known: all RDMA ports, and the quickest interface with a cable."""
    kinds = ("thunderbolt", "infiniband", "ethernet", "bond")
    wired = sorted((face for face in facts.faces if face.kind in kinds), key=lambda one: -one.speed)
    env = {"NCCL_SOCKET_IFNAME": f"={wired[0].name}"} if wired else {}
    ports = [port for port in facts.rdma if not port.software]
    return env | ({"NCCL_IB_HCA": _exactly(ports)} if ports else {"NCCL_IB_DISABLE": "1"})


def mlx_env(job: Job, rank: int) -> dict[str, str]:
    """All but the two files, see `mlx_files`; nothing for a rank that is alone."""
    if job.size == 1:
        return {}
    first = job.sites[0]
    address = meeting_addresses(job, job.site(rank))[0]
    env = {
        "MLX_RANK": str(rank),
        "MLX_WORLD_SIZE": str(job.size),
        "NCCL_HOST_IP": address,
        "NCCL_PORT": str(first.ports[3]),
    }
    if DEVICES in mlx_files(job):
        env["MLX_JACCL_COORDINATOR"] = write_address((address, first.ports[2]))
    return env


def mlx_files(job: Job) -> dict[str, str]:
    """By the variable that names it, what stands in the file: where the ranks of MLX's ring listen, and, where cables
    with RDMA join the hosts, the device to take from each rank to each other one."""
    if job.size == 1:
        return {}
    files = {RING_PORT: json.dumps(ring(job))}
    matrix = rdma_devices(job)
    if matrix is not None:
        files[DEVICES] = json.dumps(matrix)
    return files


def ring(job: Job) -> list[list[str]]:
    """Addresses on which each rank listens for the one before: on the cables between the hosts, as many for all."""
    rows = []
    for rank in range(job.size):
        site, before = job.site(rank), job.site((rank - 1) % job.size)
        given = site.entry.addresses
        cables = [] if site is before or given else faces_toward(site, before)
        port = site.ports[len(site.ports) - len(site.ranks) + site.ranks.index(rank)]
        direct = [face.address for face in quickest([face for face in cables if ":" not in face.address])]
        addresses = given or direct or [site.address]
        rows.append([write_address((address, port)) for address in dict.fromkeys(addresses)])
    width = min(len(row) for row in rows)
    return [row[:width] for row in rows]


def rdma_devices(job: Job) -> list[list[str | list[str] | None]] | None:
    """MLX's table of RDMA devices; None unless each host has one rank and all, or all neighbours in the ring, are
    joined."""
    size = job.size
    if size == 1 or any(len(site.ranks) != 1 for site in job.sites):
        return None
    table = [[_devices_toward(site, other, to) for to, other in enumerate(job.sites)] for site in job.sites]
    mesh = all(table[one][two] for one in range(size) for two in range(size) if one != two)
    neighbours = all(table[one][(one + 1) % size] and table[(one + 1) % size][one] for one in range(size))
    if not mesh and not neighbours:
        return None
    return [[(names[0] if len(names) == 1 else list(names)) if names else None for names in row] for row in table]


def _devices_toward(site: Site, other: Site, number: int) -> Sequence[str]:
    if site is other:
        return ()
    if site.entry.rdma is not None:
        return site.entry.rdma[number]
    names = joined_by(site, other)
    ports = [port for port in site.facts.rdma if not port.software and names.intersection(port.netdevs)]
    return tuple(dict.fromkeys(port.device for port in ports))


def _socket_interfaces(job: Job, site: Site) -> list[str]:
    """The interfaces for sockets: of networks on which all hosts are, else the one with the address."""
    if job.alone:
        return [site.facts.loopback]
    index = job.sites.index(site)
    names = [row[index].name for row in common_faces(job.sites)]
    names = names or [face.name for face in site.facts.faces if face.address == site.address]
    return list(dict.fromkeys(names))


def _rdma_ports(site: Site, sites: Sequence[Site]) -> list[RdmaFace]:
    joined = {name for other in sites if other is not site for name in joined_by(site, other)}
    return [
        port
        for port in site.facts.rdma
        if not port.software and (port.layer == "InfiniBand" or joined.intersection(port.netdevs))
    ]


def _exactly(ports: Sequence[RdmaFace]) -> str:
    return "=" + ",".join(f"{port.device}:{port.port}" for port in ports)
