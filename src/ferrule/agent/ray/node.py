"""An agent's Ray node: started where the cluster wants Ray, kept running, and ended with the agent.

What to do is decided in `ferrule.agent.ray.desired`; here it is done. Where the host of Ray's head has been silent for
`TAKE_OVER_SECONDS`, or has left, another one becomes the head, and all nodes start anew: what ran on Ray is lost.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import assert_never

import msgspec

from ferrule.agent.control_loop import ControlLoop
from ferrule.agent.ray.desired import (
    Action,
    Begin,
    Begun,
    Decide,
    End,
    Ended,
    Event,
    Failed,
    GiveUp,
    Node,
    NodePlan,
    Up,
    View,
    after,
    node_env,
    plan,
)
from ferrule.agent.ray.process import NodeFailed, NodeOrder, NodeUp
from ferrule.agent.ray.token import temp_directory, token_file
from ferrule.cluster.desired import DesiredRay
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.reports import RayStatus
from ferrule.cluster.state import ClusterState
from ferrule.errors import ClusterError
from ferrule.fabric.join.addresses import own_interfaces
from ferrule.launch.facts import address_toward
from ferrule.process import start

log = logging.getLogger(__name__)

_END_SECONDS = 6.0


class RayNode(ControlLoop):
    """Used from one event loop."""

    def __init__(self, home: ClusterHome, cluster: ClusterState) -> None:
        super().__init__()
        self._home, self._cluster = home, cluster
        self._node = Node()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._warned = ""

    async def close(self) -> None:
        """End the node, and all that runs on it."""
        await self.stop()
        await self._end()

    def want(self, port: int | None, store: int | None) -> None:
        """Have Ray run on all hosts, with its head here unless there is one. Raises `ClusterError`."""
        old = self._cluster.knowledge.ray
        desired = old or DesiredRay(self._cluster.host, self._own_address())
        desired = replace(desired, port=port or desired.port, store=store or desired.store)
        if desired != old:
            self._cluster.write_ray(desired)
        self._node = replace(self._node, again=0.0)
        self.look()

    def unwant(self) -> None:
        if self._cluster.knowledge.ray is not None:
            self._cluster.write_ray(None)

    def status(self) -> RayStatus:
        desired, node = self._cluster.knowledge.ray, self._node
        found = RayStatus(node.state, self._cluster.member.ray, node.why)
        if node.plan is not None:
            found = replace(found, node_address=node.plan.address)
        if desired is None:
            return found
        head = self._cluster.knowledge.members.get(desired.head)
        return replace(
            found,
            address=desired.place,
            head=head.name if head is not None else desired.head,
            ports=desired.ports,
            token_file=str(token_file(self._home)),
            store=desired.store,
        )

    async def reconcile(self) -> None:
        try:
            for action in self.planned():
                await self._do(action)
        except (ClusterError, OSError) as error:
            await self._do(GiveUp(str(error)))

    def planned(self) -> list[Action]:
        """Actions to be done now."""
        desired = self._cluster.knowledge.ray
        return plan(self._node, desired, self._view(desired), time.monotonic())

    def _view(self, desired: DesiredRay | None) -> View:
        cluster = self._cluster
        members = cluster.knowledge.members
        up = {host for host in members if cluster.is_up(host)} | {cluster.host}
        view = View(cluster.member, members, up, 0.0, (), "")
        if desired is None:
            return view
        silent = cluster.silent_seconds(desired.head)
        view = replace(view, head_silent=silent, addresses=tuple(_own_addresses()), address=self._own_address())
        try:
            return replace(view, toward=address_toward(desired.address))
        except OSError as error:
            return replace(view, no_route=f"there is no route to {desired.address}: {error.strerror or error}")

    async def _do(self, action: Action) -> None:
        match action:
            case Decide(desired, why):
                log.info("%s", why)
                self._cluster.write_ray(desired)
            case End():
                await self._end()
            case Begin(planned):
                self._begin(planned)
            case GiveUp(why):
                self._failed(why, lasting=True)
            case _:
                assert_never(action)

    def _happened(self, event: Event) -> None:
        self._node = after(self._node, event, time.monotonic())

    def _begin(self, planned: NodePlan) -> None:
        folder = self._home.directory / "ray"
        folder.mkdir(mode=0o700, exist_ok=True)
        secret, temp = token_file(self._home), temp_directory(self._home)
        order = NodeOrder(
            arguments=tuple(planned.arguments(str(temp), client=importlib.util.find_spec("grpc") is not None)),
            env=node_env(os.environ, str(secret)),
            ports=planned.own_ports,
            address=planned.address,
            head=(planned.desired.address, planned.desired.port),
            is_head=planned.is_head,
            temp=str(temp),
            log=str(folder / "node.log"),
            introduce=(planned.desired.place, planned.name, planned.address, str(self._home.directory)),
        )
        with (folder / "process.log").open("wb") as told:
            # It outlives this process to clean up: it notices that its input ends.
            command = [sys.executable, "-P", "-m", "ferrule.agent.ray.process"]
            process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, tie=False)
        self._process = process
        self._happened(Begun(planned))
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        self._watch = asyncio.create_task(self._watch_process(process, planned), name="ray node")

    async def _watch_process(self, process: subprocess.Popen[bytes], planned: NodePlan) -> None:
        """Hear what it says, until it has ended by itself."""
        assert process.stdout is not None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        why = ""
        try:
            while line := await reader.readline():
                said = msgspec.json.decode(line, type=NodeUp | NodeFailed)
                if isinstance(said, NodeFailed):
                    why = said.why
                else:
                    self._happened(Up())
                    self._warned = ""
                    log.info("Ray's %s is up at %s", self._node.state, planned.address)
        finally:
            transport.close()
        await asyncio.to_thread(process.wait)
        self._close_input(process)
        self._process = None
        self._failed(why or f"the process of Ray's node ended with status {process.returncode}")
        self.look()

    def _failed(self, why: str, *, lasting: bool = False) -> None:
        if why != self._warned:
            log.warning("no Ray here: %s", why)
            self._warned = why
        self._happened(Failed(why, lasting))

    async def _end(self) -> None:
        process, watch = self._process, self._watch
        self._process = self._watch = None
        self._happened(Ended())
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        if process is not None:
            self._close_input(process)
            try:
                await asyncio.to_thread(process.wait, _END_SECONDS)
            except subprocess.TimeoutExpired:
                log.error("the process of Ray's node does not end; killing it")
                process.kill()
                await asyncio.to_thread(process.wait)

    def _close_input(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()

    def _own_address(self) -> str:
        """The address at which most of the others reach this host, as far as is known: Ray's nodes have one each."""
        up = [peer.address for peer in self._cluster.peers.values() if peer.up and peer.address]
        toward: Counter[str] = Counter()
        for other in (address[0].partition("%")[0] for address in up):
            if ip_address(other).version == 4:
                with suppress(OSError):  # its cable is out by now
                    toward[address_toward(other)] += 1
        if toward:
            return toward.most_common(1)[0][0]
        own = self._cluster.settings.listen
        found = [own] if own else _own_addresses()
        return next((each for each in found if ip_address(each).version == 4), "127.0.0.1")


def _own_addresses() -> list[str]:
    """IPv4 ones, which Ray needs; loopback last."""
    faces = [face.address for face in own_interfaces() if face.ip.version == 4 and not face.ip.is_link_local]
    return [*faces, "127.0.0.1"]
