"""Splits of random models that `ferrule bench plan --lab` predicts and measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ferrule.bench.random_model import RandomModel, save_random_model
from ferrule.engine import EngineOptions
from ferrule.model import ModelSpec
from ferrule.model.split import divide
from ferrule.plan import Plan, Stage, make_plan, shares_by
from ferrule.plan.cost.memory import weight_bytes

CONTEXT = 1024


@dataclass(frozen=True)
class Cables:
    """All cables alike: seconds that each adds one way, and bits per second; None: as fast as this machine."""

    delay: float = 0.0
    rate: float | None = None


@dataclass(frozen=True)
class Setting:
    """A split, over each of ``cables``. ``shares``: how large the parts of ``tensor`` are to each other; ``widths``:
    ranks of each stage instead of ``tensor`` and ``pipeline``; ``experts``: routed ones are given out whole;
    ``resident``: the part of its weights that each rank has in memory, while it reads the others from disk."""

    tensor: int
    pipeline: int
    cables: tuple[Cables, ...]
    shares: tuple[float, ...] = ()
    widths: tuple[int, ...] = ()
    experts: bool = False
    resident: float | None = None

    @property
    def ranks(self) -> int:
        return sum(self.widths) or self.tensor * self.pipeline

    @property
    def text(self) -> str:
        """As options say it."""
        if self.widths:
            return f"{'+'.join(map(str, self.widths))} ranks"
        if self.ranks == 1 and self.resident is not None:
            return f"{self.resident:.0%} in memory"
        parts = [f"tp {self.tensor}"] if self.tensor > 1 or self.pipeline == 1 else []
        parts += [f"pp {self.pipeline}"] if self.pipeline > 1 else []
        parts += [":".join(f"{each:g}" for each in self.shares)] if self.shares else []
        parts += ["experts"] if self.experts else []
        parts += [f"{self.resident:.0%} in memory"] if self.resident is not None else []
        return " ".join(parts)

    def plan(self, model: ModelSpec) -> Plan:
        """Raises `PlanError` where the model cannot be cut so."""
        if not self.widths:
            return make_plan(
                model, tensor=self.tensor, pipeline=self.pipeline, experts=self.experts, speeds=self.shares
            )
        names = iter(f"rank-{rank}" for rank in range(self.ranks))
        spans = divide(model.layers, self.widths, "the number of layers")
        return Plan(
            tuple(
                Stage(tuple(next(names) for _ in range(width)), *span, shares_by(model, (1.0,) * width))
                for width, span in zip(self.widths, spans, strict=True)
            )
        )

    def room(self, model: ModelSpec) -> int | None:
        """Bytes of weights that each rank may have in memory; None: all of them."""
        if self.resident is None:
            return None
        return round(self.resident * max(weight_bytes(model.in_engine, self.plan(model))))

    def options(self, directory: Path, model: ModelSpec) -> EngineOptions:
        """Of an engine that is split by `plan`."""
        return EngineOptions(
            str(directory), threads=1, max_context=CONTEXT, self_test=False, stream_weights=self.room(model)
        )


TWO = (Cables(50e-6), Cables(300e-6), Cables(1e-3), Cables(50e-6, 20e6))
FOUR = (Cables(50e-6), Cables(1e-3))
ALONE = Setting(1, 1, (Cables(),))
ANY = (
    Setting(2, 1, TWO),
    Setting(1, 2, TWO),
    Setting(4, 1, FOUR),
    Setting(1, 4, FOUR),
    Setting(2, 2, FOUR),
    Setting(2, 1, FOUR, shares=(3.0, 1.0)),
    Setting(2, 2, FOUR, widths=(2, 1)),
    Setting(1, 1, (Cables(),), resident=0.6),
)
OF_EXPERTS = (Setting(2, 1, FOUR), Setting(2, 1, FOUR, experts=True))


@dataclass(frozen=True)
class Subject:
    """A random model and how it is split. ``calibrates``: its single rank does so for other models, too."""

    shape: RandomModel
    settings: tuple[Setting, ...]
    calibrates: bool = True

    def save(self, folder: Path) -> Path:
        """Its directory in ``folder``."""
        return save_random_model(folder / self.shape.name, self.shape)


def subjects(*, quick: bool) -> tuple[Subject, ...]:
    if quick:
        return Subject(RandomModel.tiny(), ANY), Subject(RandomModel.tiny_mixture(), OF_EXPERTS, calibrates=False)
    small = RandomModel("llama-60m-random", 512, 1536, 12, 8, 4, 16000)
    mixture = RandomModel("mixture-0.2b-random", 512, 512, 12, 8, 4, 16000, experts=16, chosen=4)
    return (
        Subject(small, ANY),
        Subject(RandomModel.half_billion(), ANY),
        Subject(mixture, OF_EXPERTS, calibrates=False),
    )
