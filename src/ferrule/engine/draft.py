"""Draft models: small ones that guess what a larger one with the same tokens will say (`--speculate draft=MODEL`), and
layers of that larger one which do so (`--speculate mtp`)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ferrule.engine.options import Draft, EngineOptions
from ferrule.engine.shards.weight_files import identity, read_layout
from ferrule.engine.source import resolve
from ferrule.engine.spec import read_mtp_spec, read_spec
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.errors import ConfigError, ModelError
from ferrule.model import ModelSpec
from ferrule.model.gguf import full_path
from ferrule.model.mtp import mtp_refusal
from ferrule.plan import Plan, make_plan


class FoundDraft(NamedTuple):
    """``spec``: for the planner; ``draft``: for the ranks."""

    spec: ModelSpec
    draft: Draft


def find_draft(model: str, options: EngineOptions, spec: ModelSpec, tokenizer: ModelTokenizer) -> FoundDraft:
    """The draft ``model``, downloaded where it is a hub id, for the one of ``spec`` with ``tokenizer``.

    Raises `ModelError` for one that is not there or cannot be run, `ConfigError` for one that cannot draft for it.
    """
    try:
        directory = resolve(model).absolute()
        drafts = read_spec(directory, dtype=options.dtype)
        theirs = ModelTokenizer(directory)
    except ModelError as error:
        raise ModelError(f"--speculate draft={model}: {error}") from None
    if spec.encoder or drafts.encoder:
        encoder = options.model if spec.encoder else model
        raise ConfigError(f"--speculate draft={model}: {encoder} is an encoder, and guesses are of models that answer")
    if spec.recurrent or drafts.recurrent:
        which = options.model if spec.recurrent else model
        raise ConfigError(
            f"--speculate draft={model}: {which} has layers with a recurrent state, which cannot be taken back to "
            "before a wrong guess; " + ("leave it out" if spec.recurrent else "take a draft model of attention alone")
        )
    _check_tokens(model, tokenizer.codec.vocabulary(), theirs.codec.vocabulary())
    known = identity(directory, read_layout(directory))
    return FoundDraft(drafts, Draft(str(full_path(directory)), known, make_plan(drafts), drafts.max_context))


def find_mtp(directory: Path, options: EngineOptions, spec: ModelSpec) -> FoundDraft:
    """The layer for multi-token prediction of the model of ``spec``, whose files are in ``directory``.

    Raises `ModelError` where it has none that is run here."""
    refusal = mtp_refusal(spec.model_type)
    try:
        if refusal is not None:
            raise ModelError(f"{options.model}: {refusal}")
        drafts = read_mtp_spec(directory, options.weights, options.dtype)
    except ModelError as error:
        raise ModelError(f"--speculate mtp: {error}") from None
    known = identity(directory, read_layout(directory))
    return FoundDraft(drafts, Draft(str(full_path(directory)), known, make_plan(drafts), drafts.max_context, mtp=True))


def check_split(draft: Draft, plan: Plan) -> None:
    """Raises `ConfigError` where ``draft`` cannot guess for a model that is split as ``plan`` says."""
    if draft.mtp and plan.context > 1:
        raise ConfigError(
            f"--speculate mtp reads the hidden states of all tokens on one rank, and with --cp {plan.context} each "
            "rank has those of some; use --speculate ngram, or --tp or --pp in place of --cp"
        )


def _check_tokens(model: str, ours: dict[str, int], theirs: dict[str, int]) -> None:
    """Raises `ConfigError` where the same number means another token. Those that were added to a vocabulary may differ:
    what is guessed of them is wrong, and found out."""
    if ours == theirs:
        return
    by_number = {number: token for token, number in theirs.items()}
    other = sorted((number, token) for token, number in ours.items() if by_number.get(number) != token)
    if other:
        number, token = other[0]
        drafted = by_number.get(number)
        what = "is no token" if drafted is None else f"is {drafted!r}"
        told = f"{len(other):,} of {len(ours):,} tokens differ; token {number} is {token!r} and there {what}"
    else:
        told = f"it has {len(theirs) - len(ours):,} tokens more than these {len(ours):,}"
    raise ConfigError(
        f"--speculate draft={model}: its tokenizer is another one than the model's ({told}); take a smaller model of "
        "the same family"
    )
