"""An agent's Ray node: started where the cluster wants Ray, kept running, and ended with the agent.

The record of kind ``ray`` names the host of Ray's head. Where that host has been silent for `TAKE_OVER_SECONDS`, or has
left, another one becomes the head, and all nodes start anew: what ran on Ray is lost with a head.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from ferrule.agent.ray.desired import NAME, DesiredRay, NodePlan, check_port, check_store, node_env, skew, successor
from ferrule.agent.ray.token import temp_directory, token_file
from ferrule.cluster.connection import Message
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.records import RAY
from ferrule.cluster.state import ClusterState
from ferrule.errors import ClusterError
from ferrule.fabric.join.addresses import own_interfaces

log = logging.getLogger(__name__)

TAKE_OVER_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_END_SECONDS = 6.0
_PAUSES = (0.5, 2.0, 5.0, 15.0, 30.0)
"""Before a node that ended is started again; the first again after it was up."""


class RayNode:
    """Used from one event loop."""

    def __init__(self, home: ClusterHome, cluster: ClusterState) -> None:
        self._home, self._cluster = home, cluster
        self._plan: NodePlan | None = None
        """Of the node that runs, or is to be started again."""
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._state, self._why = "off", ""
        self._warned = ""
        self._failures = 0
        self._again = 0.0
        """When to start the node again, by `time.monotonic`."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="ray")

    async def close(self) -> None:
        """End the node, and all that runs on it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end()

    def look(self) -> None:
        """Something has changed: a record, or who is there."""
        self._news.set()

    def want(self, port: int | None, store: int | None) -> None:
        """Have Ray run on all hosts, with its head here unless there is one. Raises `ClusterError`."""
        old = self._wanted()
        desired = old or DesiredRay(self._cluster.host, self._own_address())
        desired = replace(desired, port=check_port(port or desired.port), store=check_store(store or desired.store))
        if desired != old:
            self._cluster.write(RAY, NAME, desired.to_json())
        self._again = 0.0
        self.look()

    def unwant(self) -> None:
        if self._wanted() is not None:
            self._cluster.write(RAY, NAME, None)

    def status(self) -> Message:
        """``state``: ``off``, ``starting``, ``head``, ``node`` or ``failed``, and then ``why``."""
        found: Message = {"state": self._state, "version": self._cluster.member.ray}
        if self._why:
            found["why"] = self._why
        with suppress(ClusterError):  # `_keep` tells what is wrong with it
            found |= self._place()
        if self._plan is not None:
            found["node_address"] = self._plan.address
        return found

    def _place(self) -> Message:
        desired = self._wanted()
        if desired is not None:
            head = self._cluster.knowledge.members.get(desired.head)
            found: Message = {"address": desired.place, "head": head.name if head is not None else desired.head}
            found |= {"ports": list(desired.ports), "token_file": str(token_file(self._home)), "store": desired.store}
            return found
        return {}

    def _wanted(self) -> DesiredRay | None:
        value = self._cluster.knowledge.present(RAY).get(NAME)
        return DesiredRay.from_json(value) if value is not None else None

    async def _keep(self) -> None:
        while True:
            try:
                self.decide()
                await self._apply()
            except (ClusterError, OSError) as error:
                await self._end()
                self._failed(str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._news.wait()
            self._news.clear()

    def decide(self) -> None:
        """Whether Ray's head should move to this host, or to another address of it."""
        desired, cluster = self._wanted(), self._cluster
        if desired is None:
            return
        if desired.head == cluster.host:
            met = any(peer.up for peer in cluster.peers.values())
            usable = desired.address in _own_addresses() and not (met and ip_address(desired.address).is_loopback)
            # A cable that is out for a moment must not cost what runs on this host.
            if not usable and (met or self._state == "failed") and (address := self._own_address()) != desired.address:
                cluster.write(RAY, NAME, replace(desired, address=address).to_json())
        elif cluster.silent_seconds(desired.head) > TAKE_OVER_SECONDS:
            members = cluster.knowledge.members
            if successor(desired, members, [host for host in members if cluster.is_up(host)]) == cluster.host:
                log.info("the host of Ray's head is gone: it is here from now on")
                cluster.write(RAY, NAME, replace(desired, head=cluster.host, address=self._own_address()).to_json())

    async def _apply(self) -> None:
        plan = self._planned()
        if plan != self._plan:
            await self._end()
            self._plan, self._failures, self._again = plan, 0, 0.0
        if plan is not None and self._process is None and time.monotonic() >= self._again:
            self._begin(plan)

    def _planned(self) -> NodePlan | None:
        """The node that should run here. Raises `ClusterError` with why it cannot."""
        desired, cluster = self._wanted(), self._cluster
        if desired is None:
            return None
        head = cluster.knowledge.members.get(desired.head)
        if head is None or not cluster.is_up(desired.head):
            if self._plan is not None and self._plan.desired == desired:
                return self._plan  # it goes on until there is another head
            raise ClusterError("the host of Ray's head does not answer")
        problem = skew(cluster.member, head)
        if problem is not None:
            raise ClusterError(problem)
        if desired.head == cluster.host:
            return NodePlan(desired, cluster.settings.name, desired.address, is_head=True)
        return NodePlan(desired, cluster.settings.name, address_toward(desired.address), is_head=False)

    def _begin(self, plan: NodePlan) -> None:
        folder = self._home.directory / "ray"
        folder.mkdir(mode=0o700, exist_ok=True)
        secret, temp = token_file(self._home), temp_directory(self._home)
        order = {
            "words": plan.words(str(temp), client=importlib.util.find_spec("grpc") is not None),
            "env": node_env(os.environ, str(secret)),
            "ports": plan.own_ports,
            "address": plan.address,
            "head": [plan.desired.address, plan.desired.port],
            "is_head": plan.is_head,
            "temp": str(temp),
            "log": str(folder / "node.log"),
            "introduce": [plan.desired.place, plan.name, plan.address, str(self._home.directory)],
        }
        with (folder / "process.log").open("wb") as told:
            # Not tied to this process, which it outlives to clean up: it notices that its input ends.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ferrule.agent.ray.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=told,
                process_group=0,
            )
        self._process, self._state, self._why = process, "starting", ""
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        self._watch = asyncio.create_task(self._watch_process(process, plan), name="ray node")

    async def _watch_process(self, process: subprocess.Popen[bytes], plan: NodePlan) -> None:
        """Hear what it says, until it has ended by itself."""
        assert process.stdout is not None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        why = ""
        try:
            while line := await reader.readline():
                said: dict[str, Any] = json.loads(line)
                why = said.get("failed", "")
                if "up" in said:
                    self._state, self._failures = "head" if plan.is_head else "node", 0
                    self._warned = ""
                    log.info("Ray's %s is up at %s", self._state, plan.address)
        finally:
            transport.close()
        await asyncio.to_thread(process.wait)
        self._close_ears(process)
        self._process = None
        self._failed(why or f"the process of Ray's node ended with status {process.returncode}")
        self.look()

    def _failed(self, why: str) -> None:
        if why != self._warned:
            log.warning("no Ray here: %s", why)
            self._warned = why
        self._state, self._why = "failed", why
        self._again = time.monotonic() + _PAUSES[min(self._failures, len(_PAUSES) - 1)]
        self._failures += 1

    async def _end(self) -> None:
        process, watch = self._process, self._watch
        self._process = self._watch = self._plan = None
        self._state, self._why = "off", ""
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        if process is not None:
            self._close_ears(process)
            try:
                await asyncio.to_thread(process.wait, _END_SECONDS)
            except subprocess.TimeoutExpired:
                log.error("the process of Ray's node does not end; killing it")
                process.kill()
                await asyncio.to_thread(process.wait)

    def _close_ears(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()

    def _own_address(self) -> str:
        """The address at which most of the others reach this host, as far as is known: Ray's nodes have one each."""
        ways = [peer.way[0].partition("%")[0] for peer in self._cluster.peers.values() if peer.up and peer.way]
        toward = Counter(address_toward(way) for way in ways if ip_address(way).version == 4)
        if toward:
            return toward.most_common(1)[0][0]
        own = self._cluster.settings.listen
        found = [own] if own else _own_addresses()
        return next((each for each in found if ip_address(each).version == 4), "127.0.0.1")


def _own_addresses() -> list[str]:
    """IPv4 ones, which Ray needs; loopback last."""
    faces = [face.address for face in own_interfaces() if face.ip.version == 4 and not face.ip.is_link_local]
    return [*faces, "127.0.0.1"]


def address_toward(address: str) -> str:
    """This machine's address on the way there. Raises `ClusterError` where there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
        except OSError as error:
            raise ClusterError(f"there is no way to {address}: {error.strerror or error}") from None
        return str(probe.getsockname()[0])
