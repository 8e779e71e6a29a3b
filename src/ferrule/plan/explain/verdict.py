"""Whether to split a model at all, and what the built-in engine does not do yet: sentences."""

from __future__ import annotations

from ferrule.plan.prediction import Candidate
from ferrule.plan.question import Question
from ferrule.plan.runtime import BUILT_IN_ENGINE

PROCESSOR_FLOPS = 10e12
"""Speed above which a device that was not measured on a processor is taken to be a GPU."""
NEARLY = 0.95
"""Part of a device's room from which on it is called nearly full."""
WORTH_IT = 1.02
"""Least improvement that counts: what is better by less is called as good."""


def cautions(question: Question) -> list[str]:
    """Cautions on what the predictions count on and may not be so: a family that is not known here, and what the
    built-in engine does not do yet."""
    model = question.model
    found = []
    if not model.known_family:
        found.append(
            f"{model.model_type or model.architecture} is not a family known here: cache and arithmetic of its layers "
            "are guessed from their weights, as of a decoder with full attention, and may take more time and memory"
        )
    if question.runtime is not BUILT_IN_ENGINE:
        return found
    fast = [device for device in question.cluster.devices if not device.kind.endswith("(cpu)")]
    if any(device.half_flops > PROCESSOR_FLOPS for device in fast):
        found.append("the built-in engine was never measured on GPUs: these figures are of what it should do there")
    return found


def tight(candidate: Candidate) -> list[str]:
    """Devices that the plan leaves nearly full."""
    full = {use.device: use.needed / use.room for use in candidate.prediction.memory if use.needed > NEARLY * use.room}
    if not full:
        return []
    most = max(full, key=lambda name: full[name])
    others = f" and {len(full) - 1} more" if len(full) > 1 else ""
    return [
        f"{most}{others}: {full[most]:.0%} of what a model may fill is taken".replace("%", " %")
        + "; where a system runs short it moves what is in use to disk, and a model then runs at a hundredth of its "
        "speed: take smaller weights, less context or another host, and close what else runs there"
    ]


def verdict(question: Question, best: Candidate, single: Candidate, split: Candidate | None) -> str:
    """One sentence about whether to split at all. ``split``: the best plan over several hosts, if there is one."""
    name = single.plan.devices[0]
    devices = question.cluster.devices
    one = "device" if len(devices) > len({device.host_name for device in devices}) else "machine"
    if len(best.plan.devices) > 1:
        lacks = -single.prediction.memory[0].margin
        if lacks > 0:
            return f"One {one} is not enough: {name} alone lacks {lacks / 2**30:.1f} GiB."
        times = question.times_better(best.prediction, single.prediction)
        if times is not None and times < WORTH_IT:
            return f"One {one} is enough: {name} alone is as good."
        return "" if times is None else f"{times:.2f} times {_better(question)} {name} alone."
    if split is None or not split.prediction.fits:
        return ""
    times = question.times_better(best.prediction, split.prediction)
    if times is None:
        return ""
    hosts = len(split.plan.devices)
    if times < WORTH_IT:
        return f"One {one} is as good: {name} alone does what {hosts} would do together."
    return f"Use one {one}: {name} alone is {times:.2f} times {_better(question)} the best split over {hosts}."


def _better(question: Question) -> str:
    comparisons = {"context": "the context of", "energy": "as thrifty as"}
    return comparisons.get(question.objective, "as fast as")
