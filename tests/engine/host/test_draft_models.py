"""Draft models before any rank starts, and how their files come to the driver's host."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_threads import on_all, thread_groups
from mtp_models import make_mtp
from tiny_encoders import add_tokenizer, make_encoder
from tiny_models import make

from ferrule.engine import EngineOptions
from ferrule.engine.draft import check_split, find_draft, find_mtp
from ferrule.engine.host.prepare import prepare, rank_options
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.draft.load import obtain_draft
from ferrule.engine.spec import read_spec
from ferrule.engine.tokenizer.model import ModelTokenizer
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.errors import ConfigError, ModelError
from ferrule.model import demo_path, read_mtp
from ferrule.plan import make_plan


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_path(), tmp_path / "small"))


def asked(draft: Path | str) -> EngineOptions:
    return EngineOptions("demo", speculate=f"draft={draft}:3")


def test_a_draft_model_is_counted_and_told_to_the_ranks(small: Path) -> None:
    alone, found = prepare(EngineOptions("demo")), prepare(asked(small))
    assert found.spec == replace(alone.spec, draft=found.spec.draft)
    assert found.spec.draft is not None
    assert found.spec.draft.bytes == alone.spec.bytes
    options = rank_options(asked(small), found)
    assert options.speculate == 3
    assert options.draft is not None
    assert (options.draft.directory, options.draft.plan.world_size) == (str(small), 1)
    assert RankOptions.from_json(options.to_json()) == options
    assert rank_options(EngineOptions("demo", speculate="ngram"), alone).draft is None


def change(directory: Path, what: Any) -> None:
    file = directory / "tokenizer.json"
    told = json.loads(file.read_text())
    what(told["model"]["vocab"], told["added_tokens"])
    file.write_text(json.dumps(told))


def test_tokens_of_the_two_must_be_the_same(small: Path) -> None:
    def swap(vocabulary: dict[str, int], added: list[Any]) -> None:
        (one, first), (other, second) = list(vocabulary.items())[600:602]
        vocabulary[one], vocabulary[other] = second, first

    change(small, swap)
    with pytest.raises(ConfigError, match=r"small: its tokenizer is another .* \(2 of .* differ; token 6.. is .*there"):
        prepare(asked(small))


def test_tokens_that_were_added_may_differ(small: Path) -> None:
    change(small, lambda _, added: added.append({**added[0], "id": 3000, "content": "<other>"}))
    assert prepare(asked(small)).draft is not None


def test_what_cannot_draft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--speculate draft=/nowhere: .*no such directory"):
        prepare(asked("/nowhere"))
    encoder = tmp_path / "bert"
    make_encoder("bert", encoder)
    add_tokenizer(encoder)
    with pytest.raises(ConfigError, match="bert is an encoder, and guesses are of models that answer"):
        prepare(asked(encoder))
    recurrent: Any = SimpleNamespace(encoder=False, recurrent=True)
    with pytest.raises(ConfigError, match="draft=demo: demo has layers with a recurrent state"):
        find_draft("demo", EngineOptions("demo"), recurrent, ModelTokenizer(demo_path()))


class Host:
    """A rank of its own host, which forms ``pair`` with another one."""

    def __init__(self, world: Any, pairs: list[Any]) -> None:
        self.world, self.pairs = world, pairs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def split(self, color: int | None, key: int) -> Any:
        return None if color is None else self.pairs[key]


def test_the_driver_gets_the_files_from_a_host_that_has_them(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERRULE_MODEL_CACHE", str(tmp_path / "cache"))
    options = EngineOptions("demo", 3, self_test=False, speculate=f"draft={small}")
    here = rank_options(options, prepare(options))
    assert here.draft is not None
    away = replace(here, draft=replace(here.draft, directory=str(tmp_path / "elsewhere" / "small")))
    worlds, pairs = thread_groups(3), thread_groups(2)
    assert here.plan.driver == 0

    def obtained(world: Any, has: tuple[int, ...]) -> str | None:
        given = here if world.rank in has else away
        found = obtain_draft(Host(world, pairs), given, lambda _: None)  # type: ignore[arg-type]
        return None if found is None else found.directory

    kept = str(tmp_path / "cache" / here.draft.identity)
    try:
        assert on_all(worlds, lambda each: obtained(each, (0, 1))) == [str(small), None, None]
        assert on_all(worlds, lambda each: obtained(each, (1, 2))) == [kept, None, None]
        assert {tensor.name for tensor in Path(kept).glob("*.safetensors")} == {"model.safetensors"}
        with pytest.raises(ModelError, match=r"no rank's host has the draft model small .*is not there"):
            on_all(worlds, lambda each: obtained(each, ()))
    finally:
        for group in (*worlds, *pairs):
            group.close()


def test_a_models_own_layer_is_counted_and_told_to_the_ranks(tmp_path: Path) -> None:
    directory = make_mtp("glm4_moe", tmp_path / "model")
    own = EngineOptions(str(directory), speculate="mtp:2")
    spec = read_spec(directory)
    found, draft = find_mtp(directory, own, spec)
    assert (found.layers, found.name, draft.directory) == (1, "model's MTP layer", str(directory))
    assert (draft.mtp, draft.plan.world_size, draft.context) == (True, 1, spec.max_context)
    quantised = find_mtp(directory, replace(own, weights="int8"), spec).spec
    assert quantised.in_engine.bytes < found.in_engine.bytes / 2, "as the model's other layers are"
    check_split(draft, make_plan(spec, tensor=2, pipeline=2))
    with pytest.raises(ConfigError, match="with --cp 2 each rank has those of some; use --speculate ngram"):
        check_split(draft, make_plan(spec, context=2))


def test_a_model_without_such_a_layer_is_refused_with_what_helps(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--speculate mtp: demo: no layer for .*MTP.*use --speculate ngram"):
        prepare(EngineOptions("demo", speculate="mtp"))
    bare = make("glm4_moe", tmp_path / "bare")
    with pytest.raises(ModelError, match=r"bare holds no layer for .*download the model as its makers published it"):
        find_mtp(bare, EngineOptions(str(bare)), read_spec(bare))
    with pytest.raises(ModelError, match="bare holds no layer for multi-token prediction"):
        read_mtp(str(bare))
    config = bare / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_nextn_predict_layers": 0}))
    with pytest.raises(ModelError, match=r"its config\.json names no layer for multi-token prediction"):
        read_mtp(str(bare))


def test_the_driver_gets_the_layer_from_a_host_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_MODEL_CACHE", str(tmp_path / "cache"))
    directory = make_mtp("glm4_moe", tmp_path / "model")
    spec = read_spec(directory)
    draft = find_mtp(directory, EngineOptions(str(directory)), spec).draft
    here = RankOptions(
        str(directory), "float32", make_plan(spec, tensor=2), 1, 64, 4, 64, (), draft.identity, draft=draft
    )
    away = replace(here, draft=replace(draft, directory=str(tmp_path / "elsewhere" / "model")))
    worlds, pairs = thread_groups(2), thread_groups(2)
    try:
        given = [away, here]
        on_all(worlds, lambda each: obtain_draft(Host(each, pairs), given[each.rank], lambda _: None))  # type: ignore[arg-type]
    finally:
        for group in (*worlds, *pairs):
            group.close()
    with Checkpoint(tmp_path / "cache" / draft.identity, mtp=True) as sent, Checkpoint(directory, mtp=True) as own:
        for name in own.tensors:
            assert [part.tolist() for part in sent.read(name)] == [part.tolist() for part in own.read(name)]
        assert {"model.layers.0.eh_proj.weight", "model.embed_tokens.weight", "model.norm.weight"} < set(own.tensors)
