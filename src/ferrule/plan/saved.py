"""Plans in files: what ``ferrule plan --json`` prints, read again by ``ferrule serve --plan``.

Both sides are typed: `ModelFacts` says what is printed of a model, `SavedPlan` what is read and in which limits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ferrule.errors import ConfigError, PlanError
from ferrule.files import FileRecord, decode_record
from ferrule.model.spec import ModelSpec
from ferrule.plan.obstacle import obstacle_of
from ferrule.plan.plan import Plan
from ferrule.plan.runtime import BUILT_IN_ENGINE

CPU = "cpu"
KIND, VERSION = "plan", 1
MAX_BYTES = 64 << 20
"""Of a file; 64 plans over a thousand hosts have about 20 MB."""
CLOSE = 0.05
"""By so much the bytes of weights may differ: some counts are by arithmetic, others by the files."""
_CURE = "make one that fits: ferrule plan MODEL --json > plan.json"


@dataclass(frozen=True)
class ModelFacts:
    """By what a plan's model is told from another. ``bytes``: of all weights, stored as ``stored`` says."""

    name: str
    layers: int
    hidden_size: int
    query_heads: int
    key_value_heads: int
    vocab_size: int
    bytes: int
    stored: str

    @classmethod
    def of(cls, spec: ModelSpec) -> ModelFacts:
        return cls(**{name: getattr(spec, name) for name in cls.__dataclass_fields__})


class SavedDevice(msgspec.Struct, frozen=True):
    """The part of a device of the cluster that says where its rank runs; fields as those of `DeviceSpec`."""

    name: str
    host: str = ""
    device: str = ""


class SavedCluster(msgspec.Struct, frozen=True):
    """Devices for which the names in a plan stand."""

    devices: tuple[SavedDevice, ...] = ()


class SavedPlan(FileRecord, frozen=True, tag=KIND):
    """The part of a file that says what to run; whatever else it holds is for people. ``best``: of ``plans``."""

    version: int
    model: ModelFacts
    runtime: str
    plans: tuple[Plan, ...]
    best: int = 0
    verdict: str = ""
    cluster: SavedCluster = SavedCluster()

    @property
    def plan(self) -> Plan:
        return self.plans[self.best]

    @property
    def hosts(self) -> tuple[str, ...]:
        """By rank; a device is its host where the file does not say otherwise."""
        known = {device.name: device.host for device in self.cluster.devices}
        return tuple(known.get(name) or name for name in self.plan.devices)

    @property
    def device(self) -> str | None:
        """Value for ``--device``: one name, or one for each rank; None where the file names none."""
        known = {device.name: device.device for device in self.cluster.devices}
        names = [known.get(name) or CPU for name in self.plan.devices]
        return (names[0] if len(set(names)) == 1 else ",".join(names)) if any(known.values()) else None

    @property
    def prompts(self) -> SavedPlan | None:
        """That of the ranks which compute prompts for those of this one, as a plan by itself."""
        return None if self.plan.prompts is None else self._with(self.plan.prompts)

    @property
    def alone(self) -> SavedPlan:
        """Without ranks for prompts."""
        return self._with(self.plan.alone)

    def _with(self, plan: Plan) -> SavedPlan:
        return msgspec.structs.replace(self, plans=(plan,), best=0)

    def to_json(self) -> str:
        """With the best plan alone, for `parse_plan`."""
        return msgspec.json.encode(self._with(self.plan)).decode()

    def for_model(self, spec: ModelSpec) -> Plan:
        """The best plan, once it is sure that it is for this model and that the engine can run it.

        Raises `PlanError`, naming all that differs.
        """
        here = ModelFacts.of(spec)
        names = ("layers", "hidden_size", "query_heads", "key_value_heads", "vocab_size")
        differing = [
            f"{name.replace('_', ' ')} {there} and not {mine}"
            for name in names
            if (there := getattr(self.model, name)) != (mine := getattr(here, name))
        ]
        if differing:
            raise PlanError(
                f"the plan is for {self.model.name} with {', '.join(differing)}, which {spec.name} has; {_CURE}"
            )
        if abs(self.model.bytes - here.bytes) > CLOSE * here.bytes:
            raise PlanError(
                f"the plan counts on weights of {self.model.bytes / 2**30:.2f} GiB ({self.model.stored}), and "
                f"{spec.name} has {here.bytes / 2**30:.2f} GiB ({here.stored}); plan again without --weights"
            )
        plan = self.plan
        devices = {device.name: device.device for device in self.cluster.devices}
        gpus = any(devices.get(name, "") not in ("", CPU) for name in plan.all_devices)
        if plan.prompts is not None and gpus and (reason := spec.hand_over_by_tensors_obstacle):
            raise PlanError(f"{spec.name} cannot be run as the plan says: {reason}; {_CURE}")
        if plan.layers != spec.layers:
            raise PlanError(f"the plan's stages hold {plan.layers} layers, and {spec.name} has {spec.layers}; {_CURE}")
        obstacle = obstacle_of(spec, plan)
        if obstacle is not None:
            raise PlanError(f"{spec.name} cannot be split as the plan says: {obstacle}; {_CURE}")
        return replace(plan, obstacle=None).because(self.verdict)

    def require_hosts(self, known: Collection[str], where: str) -> None:
        """Raises `PlanError` where the plan needs a host that is not among the ``known`` ones of ``where``."""
        hosts = (*self.hosts, *(self.prompts.hosts if self.prompts is not None else ()))
        missing = [name for name in dict.fromkeys(hosts) if name not in known]
        if missing:
            raise PlanError(
                f"the plan places ranks on {', '.join(missing)}, and {where} has only {', '.join(sorted(known))}; "
                "plan for the hosts that are there"
            )


def read_plan(file: Path) -> SavedPlan:
    """Plan that ``ferrule plan --json`` wrote to ``file``. Raises `ConfigError`."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    return parse_plan(text, str(file))


def parse_plan(text: bytes | str, origin: str) -> SavedPlan:
    """``origin`` names it in errors. Raises `ConfigError` for what `ferrule plan --json` did not print, or where
    nothing fitted."""
    try:
        saved = decode_record(text, SavedPlan, most=MAX_BYTES)
    except (msgspec.DecodeError, PlanError) as error:
        raise ConfigError(f"{origin} is no plan ({error}); {_CURE}") from None
    if saved.version != VERSION:
        raise ConfigError(f"{origin} has version {saved.version} of the format, and this Ferrule reads {VERSION}")
    if not saved.plans:
        raise ConfigError(f"{origin} holds no plan, since nothing fitted; ferrule plan says what would")
    if not 0 <= saved.best < len(saved.plans):
        raise ConfigError(f"{origin}: best is {saved.best}, and there are {len(saved.plans)} plans; {_CURE}")
    if saved.runtime != BUILT_IN_ENGINE.name:
        raise ConfigError(
            f"{origin} is a plan for the engine {saved.runtime}, and ferrule serve runs {BUILT_IN_ENGINE.name}; "
            "leave --runtime out of ferrule plan"
        )
    return saved
