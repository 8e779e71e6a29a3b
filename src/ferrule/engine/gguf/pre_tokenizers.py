"""Pre-tokenizers of byte-level BPE, by the names that GGUF files give (``tokenizer.ggml.pre``).

The expressions are part of the models: each is that of the ``tokenizer.json`` which its makers publish.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from ferrule.errors import ModelError

_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_SHORT}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"(?i:{_SHORT})|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}"
_QWEN2 = rf"(?i:{_SHORT})|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CASED = (rf"{_BEFORE}{_UPPER}*{_LOWER}+", rf"{_BEFORE}{_UPPER}+{_LOWER}*")
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_O200K = "|".join([*(rf"{each}(?i:{_SHORT})?" for each in _CASED), r"\p{N}{1,3}", _MARKS, _END])
_TEKKEN = "|".join([*_CASED, r"\p{N}", _MARKS, _END])
_IDEOGRAMS = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_END}",
)
_DEEPSEEK_LETTERS = r"[\p{Lu}\p{Ll}\p{Lt}&&[^\u10d0-\u10ff]]"
"""Cased letters; those of Georgian were none when this tokenizer was made."""


@dataclass(frozen=True)
class Cut:
    """``expressions``: one after the other, each cutting what the last one left. ``whole``: a piece that is a token is
    taken as it is, before any merge. ``begins``: a text begins with the token for it where the file does not say.
    ``composed``: text is brought into Unicode's composed form (NFC) first."""

    expressions: tuple[str, ...]
    whole: bool = False
    begins: bool = False
    composed: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        parts = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in self.expressions]
        return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_BY_CUT = {
    Cut((_GPT2,)): "gpt-2 gpt2 default olmo mpt jais",
    Cut((_LLAMA3,), whole=True, begins=True): "llama3 llama-v3 llama-bpe falcon3 pixtral lfm2",
    Cut((_LLAMA3,)): "dbrx smaug-bpe glm4 chatglm-bpe",
    Cut((_QWEN2,), composed=True): "qwen2 deepseek-r1-qwen megrez",
    Cut((_O200K,)): "gpt-4o llama4",
    Cut((_TEKKEN,), whole=True, begins=True): "tekken",
    Cut((r"\p{N}", _GPT2)): "starcoder refact command-r smollm codeshell exaone",
    Cut(_DEEPSEEK3): "deepseek-v3 hunyuan-dense",
    Cut((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAMS, r"\p{N}")): "deepseek-coder",
    Cut(
        (r"[\r\n]", rf"\s?{_DEEPSEEK_LETTERS}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _IDEOGRAMS, r"\p{N}")
    ): "deepseek-llm",
}

CUTS: dict[str, Cut] = {name: cut for cut, names in _BY_CUT.items() for name in names.split()}
"""By the names in files."""


def cut_of(name: str, file: str) -> Cut:
    """Raises `ModelError` for one that is not known: another would cut some texts otherwise than the model learned."""
    found = CUTS.get(name or "default")
    if found is None:
        raise ModelError(
            f"{file} has a tokenizer that cuts text in the way {name[:60]!r}, which is not known here; use the "
            f"directory of the model's safetensors. These are known: {', '.join(sorted(CUTS))}"
        )
    return found
