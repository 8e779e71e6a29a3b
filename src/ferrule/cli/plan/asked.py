"""Question of `ferrule plan` before its machines are known: read first, since machines may have to be measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from ferrule.model import ModelSpec
    from ferrule.plan import ClusterSpec, Question, Runtime, Workload

Goal = Literal["latency", "throughput", "ttft", "answer", "context", "energy"]
_FORMATS = {
    "ferrule": ("bfloat16", "int8", "int4"),
    "mlx": ("mlx-8bit", "mlx-6bit", "mlx-4bit"),
    "vllm": ("fp8", "gptq-int4"),
    "llama.cpp-rpc": ("q8_0", "q4_k_m"),
    "exo-grpc": ("mlx-8bit", "mlx-4bit"),
}
"""Formats in which weights might be stored instead, by engine."""


@dataclass(frozen=True)
class Asked:
    """Question to the planner without its machines. ``lighter``: the model in formats of fewer bytes, with words for
    each."""

    model: ModelSpec
    runtime: Runtime
    work: Workload
    lighter: tuple[tuple[str, ModelSpec], ...]

    def on(self, cluster: ClusterSpec, objective: Goal) -> Question:
        from ferrule.plan import BUILT_IN_ENGINE, Question
        from ferrule.plan.cost import calibrated, read_calibrations

        if self.runtime is BUILT_IN_ENGINE:
            known = read_calibrations()
            measured = (calibrated(device, known) if device.measured else device for device in cluster.devices)
            cluster = replace(cluster, devices=tuple(measured))
        if self.model.encoder and objective != "context":  # it makes no tokens: what counts is the time of a text
            objective = "ttft"
        return Question(self.model, cluster, self.work, objective, self.runtime, self.lighter)


def asked_of(
    name: str,
    weights: str | None,
    engine: str,
    work: Workload,
    kv_cache: str = "auto",
    draft: str | None = None,
) -> Asked:
    """Read model ``name``. ``draft``: a model that is to guess for it, or ``mtp`` for its own layer that does. Raises
    `ConfigError` for flags that cannot be, and what `read_model` raises."""
    from ferrule.errors import FerruleError
    from ferrule.model import MTP, kept_in, read_model, read_mtp
    from ferrule.model.storage import PLAIN
    from ferrule.plan import BUILT_IN_ENGINE, RUNTIMES, runtime_named

    runtime = runtime_named(engine)
    if runtime is None:
        raise ConfigError(f"--runtime: there is no {engine!r}; there are {', '.join(RUNTIMES)}")
    if kv_cache != "auto" and runtime is not BUILT_IN_ENGINE:
        raise ConfigError(f"--kv-cache is of the built-in engine, and --runtime is {engine}: leave one of them out")
    if draft is not None and runtime is not BUILT_IN_ENGINE:
        raise ConfigError(f"--draft is of the built-in engine, and --runtime is {engine}: leave one of them out")
    if work.prompt > work.context:
        raise ConfigError(f"--prompt {work.prompt} is more than --context {work.context} has room for; raise --context")
    drafts = None
    if draft is not None:
        drafts = read_mtp(name, weights=weights) if draft == MTP else read_model(draft)
    model = replace(kept_in(read_model(name, weights=weights), kv_cache), draft=drafts)
    lighter = []
    for stored in _FORMATS[runtime.name]:
        try:
            flag = runtime is BUILT_IN_ENGINE and stored not in PLAIN
            description = f"{stored} (--weights {stored})" if flag else stored
            lighter.append((description, replace(kept_in(read_model(name, weights=stored), kv_cache), draft=drafts)))
        except FerruleError:  # a GGUF file cannot be counted as if it were stored otherwise
            break
    lighter = [each for each in lighter if each[1].bytes < 0.9 * model.bytes]
    lighter.sort(key=lambda each: -each[1].bytes)
    return Asked(model, runtime, work, tuple(lighter))
