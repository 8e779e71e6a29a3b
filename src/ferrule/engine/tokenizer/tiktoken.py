"""Tokenizers that are only a ``tiktoken.model`` and a Python file of the model's makers, which is not run.

transformers' converter reads the ranks. The pattern that splits text beforehand stands in the Python file alone: it is
known here by the class that ``auto_map`` names, or the tokenizer is refused.
"""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer

from ferrule.engine.tokenizer.parts import Parts, fast_parts
from ferrule.errors import ModelError

RANKS = "tiktoken.model"
RESERVED = 256
"""Tokens behind the ranks; those that tokenizer_config.json does not name are reserved."""
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_START, _ENDING = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = {
    # moonshotai/Kimi-K2-Instruct
    "tokenization_kimi.TikTokenTokenizer": "|".join(
        (
            r"[\p{Han}]+",
            f"{_START}{_UPPER}*{_LOWER}+{_ENDING}",
            f"{_START}{_UPPER}+{_LOWER}*{_ENDING}",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    )
}


class _Token(msgspec.Struct):
    content: str
    special: bool = False


class _Settings(msgspec.Struct):
    auto_map: dict[str, tuple[str | None, ...]] = {}
    added_tokens_decoder: dict[int, _Token] = {}
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    pad_token: str | _Token | None = None
    chat_template: str | None = None


def _base(directory: Path, pattern: str) -> Tokenizer:
    """By transformers' converter, but for the reading of lines, for which that wants the package tiktoken."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    class Converter(TikTokenConverter):  # type: ignore[misc]
        @staticmethod
        def load_tiktoken_bpe(file: str) -> dict[bytes, int]:
            lines = (line.split() for line in Path(file).read_bytes().splitlines() if line)
            return {base64.b64decode(token): int(rank) for token, rank in lines}

    converted: Tokenizer = Converter(str(directory / RANKS), pattern).converted()
    return converted


def read_tiktoken(directory: Path) -> Parts:
    """Raises `ModelError` where the pattern is not known, or a file is missing or damaged."""
    try:
        settings = msgspec.json.decode((directory / "tokenizer_config.json").read_bytes(), type=_Settings)
        name = (*settings.auto_map.get("AutoTokenizer", ()), None)[0]
        if name not in PATTERNS:
            raise ModelError(
                f"{directory} has its tokenizer only as {RANKS} and as code of its makers ({name}), which is not run; "
                "put a tokenizer.json beside it, such as that of a conversion of this model for transformers or MLX"
            )
        base = _base(directory, PATTERNS[name])
        template = directory / "chat_template.jinja"
        chat = template.read_text() if template.exists() else settings.chat_template
    except (OSError, ValueError) as error:
        raise ModelError(f"{directory / RANKS} cannot be read as a tokenizer: {error}; download it again") from None
    first = base.get_vocab_size()
    named = settings.added_tokens_decoder
    added = [named.get(i, _Token(f"<|reserved_token_{i}|>", True)) for i in range(first, first + RESERVED)]
    base.add_tokens([AddedToken(each.content, normalized=False, special=each.special) for each in added])
    own = {kind: getattr(settings, kind) for kind in ("bos_token", "eos_token", "pad_token")}
    told = {kind: each.content if isinstance(each, _Token) else each for kind, each in own.items() if each is not None}
    return fast_parts(base, told, chat)
