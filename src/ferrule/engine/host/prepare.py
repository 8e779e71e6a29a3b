"""Preparation of a model before any rank starts: its files found, tokenizer and sizes read, the options checked."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ferrule.engine.adapters import counted, find
from ferrule.engine.draft import check_split, find_draft, find_mtp
from ferrule.engine.host.processes import rank_threads
from ferrule.engine.images.families import Told
from ferrule.engine.images.prompts import told_of
from ferrule.engine.options import Adapter, Draft, EngineOptions, RankOptions
from ferrule.engine.shards.weight_files import identity, read_layout
from ferrule.engine.source import DEMO, HEAD, called, resolve
from ferrule.engine.spec import read_spec
from ferrule.engine.speculation import parse_speculation
from ferrule.engine.tokenizer.generation import generation_defaults
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.engine.types import Progress, ProgressCallback, SamplingParams
from ferrule.engine.vectors import Dense, read_dense
from ferrule.errors import ConfigError, ModelError
from ferrule.model import Embedding, ModelSpec, kept_in, lacks_head, read_embedding, read_model
from ferrule.model.gguf import full_path
from ferrule.plan import Plan
from ferrule.process.memory import trim

_log = logging.getLogger(__name__)
Result = TypeVar("Result")
PlanChoice = Callable[[ModelSpec], Plan]
"""Raises `PlanError` where the model cannot be held or split so."""
DEMO_NAME = "ferrule-demo"


@dataclass(frozen=True)
class PreparedModel:
    """``end_tokens``: ids that end an answer, by the tokenizer and by generation_config.json. ``identity``: by which
    the hosts of the ranks tell this model from others. ``adapters``: with the directories of their files. ``dense``:
    what vectors go through after pooling. ``images``: how it takes them; None: it takes text only. ``draft``: the model
    that guesses tokens for it."""

    directory: Path
    spec: ModelSpec
    plan: Plan
    tokenizer: ModelTokenizer
    default_sampling: SamplingParams
    end_tokens: frozenset[int]
    identity: str
    adapters: tuple[Adapter, ...] = ()
    embedding: Embedding = field(default_factory=Embedding)
    images: Told | None = None
    dense: tuple[Dense, ...] = ()
    draft: Draft | None = None

    @property
    def longest(self) -> int:
        """The most tokens of one sequence, by default; of an encoder as many as it was trained with."""
        most = self.spec.max_context
        return min(most, self.embedding.longest or most) if self.spec.encoder else most


def prepare(
    options: EngineOptions,
    choose: PlanChoice | None = None,
    on_progress: ProgressCallback = lambda _: None,
    *,
    unknown: bool = False,
) -> PreparedModel:
    """Find (or download) the model, check its files and plan the split: by ``choose``, else as ``options`` say.
    ``on_progress``: of a download. ``unknown``: it need not be one that the built-in engine runs.

    Raises `ModelError`, `PlanError` or `ConfigError`, whichever is at fault.
    """
    directory = resolve(options.model, lambda done, total: on_progress(Progress(0, "download", done, total)))
    spec = kept_in(_spec_of(directory, options, unknown=unknown), options.kv_cache)
    if options.max_context is not None and options.max_context > spec.max_context:
        raise ConfigError(
            f"--max-context {options.max_context} is more than the {spec.max_context} tokens that this model runs with"
        )
    if spec.encoder and options.adapters:
        raise ConfigError(f"--adapter: {options.model} is an encoder, and adapters are of models that answer")
    adapters = tuple(find(each) for each in options.adapters)
    if adapters:
        spec = counted(spec, adapters)
    tokenizer = ModelTokenizer(directory)
    tokenizer.check_vocabulary(spec.vocab_size)
    if tokenizer.warning is not None:
        _log.warning("%s", tokenizer.warning)
    draft = None
    asked = parse_speculation(options.speculate)
    if asked.method in ("draft", "mtp"):
        by_itself = asked.method == "mtp"
        found = find_mtp(directory, options, spec) if by_itself else find_draft(asked.draft, options, spec, tokenizer)
        spec, draft = replace(spec, draft=found.spec), found.draft
    trim()  # reading a large vocabulary takes twice what it then needs
    sampling, ends = generation_defaults(directory)
    embedding = Embedding()
    if directory.is_dir():  # else: a GGUF file
        embedding = read_embedding(directory, encoder=spec.encoder)
    if spec.encoder and embedding.refusal is not None:
        raise ModelError(f"{options.model}: {embedding.refusal}, and an encoder makes nothing but vectors")
    dense = read_dense(directory, embedding, spec.hidden_size)
    layout = read_layout(directory)
    has_head = any(HEAD.encode() in file.head for file in layout.files)
    if lacks_head(directory, tied=spec.tied, has_head=has_head):
        embedding = replace(embedding, only=True)
    known = identity(directory, layout)
    images = told_of(directory)
    # Last: to choose, the machine may have to be measured, which is not done for a model that cannot be used.
    plan = choose(spec) if choose else options.plan(spec)
    if draft is not None:
        check_split(draft, plan)
    ends |= tokenizer.end_tokens
    return PreparedModel(
        directory, spec, plan, tokenizer, sampling, ends, known, adapters, embedding, images, dense, draft
    )


def _spec_of(directory: Path, options: EngineOptions, *, unknown: bool) -> ModelSpec:
    try:
        return read_spec(directory, options.weights, options.dtype)
    except ModelError:
        if not unknown:
            raise
        return read_model(str(directory))  # as the planner counts what it does not know


def name_of(options: EngineOptions, directory: Path) -> str:
    """What the API calls the model whose files are in ``directory``."""
    return options.name or (DEMO_NAME if options.model == DEMO else called(options.model, directory))


def rank_options(options: EngineOptions, model: PreparedModel) -> RankOptions:
    """What the ranks of ``model`` are told, by its own plan and with the threads that this machine has for each."""
    return RankOptions(
        directory=str(full_path(model.directory)),
        dtype=options.dtype,
        plan=model.plan,
        threads=rank_threads(options.threads, model.plan.world_size * options.copies),
        context=options.max_context or model.longest,
        max_sequences=options.max_sequences,
        batch_tokens=options.batch_tokens,
        end_tokens=tuple(sorted(model.end_tokens)),
        identity=model.identity,
        adapters=model.adapters,
        speculate=parse_speculation(options.speculate).most,
        draft=model.draft,
        **options.shared(),
    )


async def prepared(
    options: EngineOptions,
    choose: PlanChoice | None = None,
    on_progress: ProgressCallback | None = None,
    *,
    unknown: bool = False,
) -> PreparedModel:
    """`prepare` beside the event loop, from which ``on_progress`` is called."""
    loop = asyncio.get_running_loop()

    def tell(progress: Progress) -> None:
        if on_progress is not None:
            loop.call_soon_threadsafe(on_progress, progress)

    return await in_background(lambda: prepare(options, choose, tell, unknown=unknown))


async def in_background(work: Callable[[], Result]) -> Result:
    """Run ``work`` beside the event loop, in a thread that does not hold up the program's end (a download would)."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def deliver(finish: Callable[[], None]) -> None:
        if not done.done():  # else: cancelled
            finish()

    def run() -> None:
        try:
            result = work()
            finish = lambda: done.set_result(result)  # noqa: E731
        except BaseException as error:  # noqa: BLE001 - it is raised again in the event loop
            raised = error
            finish = lambda: done.set_exception(raised)  # noqa: E731
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, finish)

    threading.Thread(target=run, name="prepare model", daemon=True).start()
    return await done
