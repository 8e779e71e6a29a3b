"""The tokenizer of a model directory: its ``tokenizer.json`` with the tokens that other files add to it.

Read as transformers' `TokenizersBackend` reads it, with which tests compare it, but without importing that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from ferrule.engine.tokenizer import word_piece
from ferrule.engine.tokenizer.by_transformers import read_by_transformers
from ferrule.engine.tokenizer.parts import FastCodec, Parts
from ferrule.errors import ModelError
from ferrule.model.headers import read_json

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Tokens that have a part of their own in every tokenizer of transformers; a model may have others."""
_AS_STORED = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
"""Classes of transformers that take ``tokenizer.json`` as it is."""
_EQUAL = frozenset({"GemmaTokenizer", "GemmaTokenizerFast"})
"""Classes that make the same of its vocabulary alone."""


class _Token(msgspec.Struct):
    """As `AddedToken` takes it."""

    content: str
    single_word: bool | None = None
    lstrip: bool | None = None
    rstrip: bool | None = None
    normalized: bool | None = None
    special: bool | None = None

    def added(self, *, special: bool) -> AddedToken:
        """``special``: it is one whatever is told of it."""
        told = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return AddedToken(**told | ({"special": True} if special else {}))


class _Template(msgspec.Struct):
    name: str
    template: str


class _Settings(msgspec.Struct):
    """Settings of ``tokenizer_config.json`` beside the tokens with a part; those of BERT's class with its defaults."""

    tokenizer_class: str | None = None
    auto_map: Any = None
    fast_tokenizer_files: Any = None
    added_tokens_decoder: dict[int, _Token] | None = None
    extra_special_tokens: list[str | _Token] | dict[str, str | _Token] | None = None
    additional_special_tokens: list[str | _Token] | None = None
    split_special_tokens: bool = False
    do_lower_case: bool = True
    tokenize_chinese_chars: bool = True
    strip_accents: bool | None = None
    chat_template: str | list[_Template] | None = None
    response_template: Any = None


def read_files(directory: Path) -> Parts:
    """By ``tokenizer.json``; by transformers where that is missing, or where transformers has a class for this model
    that makes something else of it. Raises `ModelError` where there is no tokenizer, or a damaged one."""
    file = directory / "tokenizer.json"
    if not file.exists():
        return read_by_transformers(directory)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the tokenizers library raises nothing narrower
        raise ModelError(f"{file} has no tokenizer that can be read: {error}; download it again") from None
    told = _told(directory)
    if tokenizer.padding is not None:
        told.setdefault("pad_token", tokenizer.padding["pad_token"])
    settings = _converted(told, _Settings, directory)
    named = _named(told, directory)
    if isinstance(settings.extra_special_tokens, dict):
        named |= {name: _token(given) for name, given in settings.extra_special_tokens.items()}
    if not _complete(settings, tokenizer, named):
        return read_by_transformers(directory)
    tokenizer.add_tokens(_lacking(tokenizer, settings, list(named.values()), directory))
    tokenizer.encode_special_tokens = settings.split_special_tokens
    special = {name: token.content for name, token in named.items()}
    return Parts(FastCodec(tokenizer), special, _template(directory, settings), response=settings.response_template)


def _told(directory: Path) -> dict[str, Any]:
    """``tokenizer_config.json``; without ``added_tokens_decoder``, as older versions of transformers saved it, with
    ``special_tokens_map.json``."""
    config, special = directory / "tokenizer_config.json", directory / "special_tokens_map.json"
    told = read_json(config) if config.exists() else {}
    if "added_tokens_decoder" not in told and special.exists():
        told |= read_json(special)
    return told


def _complete(settings: _Settings, tokenizer: Tokenizer, named: Mapping[str, _Token]) -> bool:
    """Whether ``tokenizer`` is all there is to know: transformers' class takes it as it is, or makes the same; or it is
    byte-level, of which classes make the same (where one does not, it is the wrong one, and the makers' file counts)
    but for defaults; or a class of the model's own is named, which would be code to run and adds nothing."""
    if settings.fast_tokenizer_files:
        return False
    name = settings.tokenizer_class
    if settings.auto_map is not None or name in _AS_STORED or name in _EQUAL:
        return True
    if name in word_piece.CLASSES:
        return word_piece.as_stored(
            tokenizer,
            {role: token.content for role, token in named.items()},
            lower=settings.do_lower_case,
            chinese=settings.tokenize_chinese_chars,
            accents=settings.strip_accents,
        )
    decoder = tokenizer.decoder
    return decoder is not None and b'"ByteLevel"' in decoder.__getstate__() and "eos_token" in named


def _named(told: Mapping[str, Any], directory: Path) -> dict[str, _Token]:
    """The tokens that have a part: those of `ROLES`, and others whose name says it."""
    return {
        name: _token(_converted(value, str | _Token, directory))
        for name, value in told.items()
        if value is not None and (name in ROLES or (name.endswith("_token") and isinstance(value, str | dict)))
    }


def _token(given: str | _Token) -> _Token:
    return _Token(given) if isinstance(given, str) else given


def _lacking(tokenizer: Tokenizer, settings: _Settings, named: list[_Token], directory: Path) -> list[AddedToken]:
    """The tokens that ``tokenizer.json`` lacks, or tells otherwise than the files beside it."""
    extra = settings.extra_special_tokens or settings.additional_special_tokens or []
    special = [*named, *(_token(each) for each in extra if not isinstance(settings.extra_special_tokens, dict))]
    there = {each.content for each in tokenizer.get_added_tokens_decoder().values()}
    roles = {each.content for each in named}
    if settings.added_tokens_decoder is None:
        added = [each for each in _legacy(directory, {each.content for each in special}) if each.content not in there]
    else:
        told = sorted(settings.added_tokens_decoder.items())
        added = [each.added(special=each.content in roles) for _, each in told]
    there |= {each.content for each in added}
    new = dict[str, _Token]()
    for each in special:
        if each.content not in there:
            new.setdefault(each.content, each)
    return added + [each.added(special=True) for each in new.values()]


def _legacy(directory: Path, special: set[str]) -> list[AddedToken]:
    """Of ``added_tokens.json``, where older versions of transformers saved them, in the order of their ids."""
    file = directory / "added_tokens.json"
    told: dict[str, int] = _converted(read_json(file), dict[str, int], directory) if file.exists() else {}
    return [
        AddedToken(text, normalized=text not in special, special=text in special)
        for text in sorted(told, key=told.__getitem__)
    ]


def _template(directory: Path, settings: _Settings) -> str | None:
    """The chat template: of a file of its own, else of the settings, where several have names."""
    file = directory / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file} cannot be read as a chat template: {error}; download it again") from None
    if isinstance(settings.chat_template, list):
        return next((each.template for each in settings.chat_template if each.name == "default"), None)
    return settings.chat_template


def _converted(told: Any, kind: Any, directory: Path) -> Any:
    try:
        return msgspec.convert(told, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"{directory}: the settings beside tokenizer.json (tokenizer_config.json, special_tokens_map.json, "
            f"added_tokens.json) cannot be read: {error}; download them again"
        ) from None
