"""Hosts of a cluster that compute prompts for others: by the planner, as it sees the hosts now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferrule.agent.placement.devices import HostDevices, cluster_of
from ferrule.agent.placement.hosts import require_known
from ferrule.cluster.client import ask_here
from ferrule.cluster.home import ClusterHome
from ferrule.cluster.messages import GetStatus
from ferrule.cluster.records import Member
from ferrule.engine.host.lost_devices import LostDevices
from ferrule.engine.options import EngineOptions
from ferrule.errors import ConfigError
from ferrule.model import ModelSpec
from ferrule.plan import ClusterSpec, Question, Workload, search, with_apart
from ferrule.plan.cluster import HostReport
from ferrule.plan.explain import apart_verdict

PROMPT = 4096
"""Tokens of the prompts for which it is decided whether they are computed apart, where the model takes so many; answers
are those of `Workload`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostDivision:
    """Names of hosts for ``answers``, those that are to spare among them, and for ``prompts``; why, in ``reason``."""

    answers: tuple[str, ...]
    prompts: tuple[str, ...]
    reason: str


async def planned_division(
    home: ClusterHome, options: EngineOptions, wanted: Sequence[str], model: ModelSpec, context: int
) -> HostDivision | None:
    """The division of the hosts with which a whole answer comes soonest; None where that is none. ``wanted``: only
    these hosts, all if empty. ``context``: tokens of a sequence. Raises `ConfigError` for hosts that are not there."""
    status = await ask_here(home, GetStatus())
    require_known(wanted, status.hosts)
    able = [each for each in status.hosts if not each.install_engine and (not wanted or each.name in wanted)]
    up = [each for each in able if each.is_up]
    described = await HostDevices(home, options.device).described(up, LostDevices(), fresh=False)
    names = [each.name for each in able]
    found = await asyncio.to_thread(_planned, model, context, up, described, names)
    _log.info("%s", "prompts and answers are computed by the same ranks" if found is None else found.reason)
    return found


def _planned(
    model: ModelSpec, context: int, up: Sequence[Member], described: Mapping[str, HostReport], names: Sequence[str]
) -> HostDivision | None:
    members = [member for member in up if member.host in described]
    return None if len(members) < 2 else division(model, cluster_of(members, described), context, names)


def division(model: ModelSpec, cluster: ClusterSpec, context: int, names: Sequence[str]) -> HostDivision | None:
    """As `planned_division`, of a ``cluster`` as it was described. ``names``: of all hosts, also of others."""
    work = Workload(context=context, prompt=max(1, min(PROMPT, context // 2)))
    question = Question(model, cluster, work, "answer", runnable_only=True)
    found = with_apart(question, search(question))
    best = found.best
    if best is None or best.plan.prompts is None:
        return None
    prompts = tuple(dict.fromkeys(cluster.by_name[name].host_name for name in best.plan.prompts.devices))
    answers = {cluster.by_name[name].host_name for name in best.plan.devices}
    if answers.intersection(prompts):  # devices of one host: it would be lost to both at once
        return None
    plain = next((each for each in found.candidates if each.plan.prompts is None and each.prediction.fits), None)
    rest = tuple(name for name in names if name not in prompts)
    return HostDivision(rest, prompts, apart_verdict(question, best, plain))


async def given_division(home: ClusterHome, wanted: Sequence[str], prompts: Sequence[str]) -> HostDivision:
    """As the user said: ``prompts`` on these hosts, and answers on all others that are ``wanted`` (all if empty).
    Raises `ConfigError` where there are none."""
    status = await ask_here(home, GetStatus())
    require_known([*wanted, *prompts], status.hosts)
    rest = tuple(
        each.name
        for each in status.hosts
        if each.name not in prompts and not each.install_engine and (not wanted or each.name in wanted)
    )
    if not rest:
        raise ConfigError(f"no host is left for answers beside {', '.join(prompts)}, which are to compute prompts")
    return HostDivision(rest, tuple(prompts), f"Prompts on {', '.join(prompts)}")
