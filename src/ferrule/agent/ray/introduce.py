"""Start the actor of a host on its Ray node. Arguments: where Ray's head is, the host's name and address, and the
cluster's directory."""

from __future__ import annotations

import sys

import ray

from ferrule.agent.ray.actor import HostAgent
from ferrule.agent.ray.desired import NAMESPACE, resource

_ANSWER_SECONDS = 60.0


def main(place: str, name: str, address: str, directory: str) -> int:
    ray.init(address=place, namespace=NAMESPACE, _node_ip_address=address, log_to_driver=False)
    made = ray.remote(HostAgent).options(
        name=name,
        get_if_exists=True,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=0,
        resources={resource(name): 0.001},
    )
    told = ray.get(made.remote(directory).host.remote(), timeout=_ANSWER_SECONDS)
    ray.shutdown()
    return 0 if told == name else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
