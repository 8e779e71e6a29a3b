"""Models with random weights, to measure speed without a download. What they say is nonsense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ferrule.model import demo_path


@dataclass(frozen=True)
class RandomModel:
    """The shape of a random Llama; with ``experts``, ``chosen`` of them by each token, ``intermediate`` wide, of a
    mixture of experts (Qwen3)."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int = 32000
    experts: int = 0
    chosen: int = 0

    @classmethod
    def half_billion(cls) -> RandomModel:
        """499.7 million parameters, 1.0 GB in bfloat16: beyond any cache, so decoding streams it from memory."""
        return cls("llama-0.5b-random", 1024, 4864, 24, 16, 8)

    @classmethod
    def sixty_million(cls) -> RandomModel:
        """56 million parameters: so quick on processors that time goes by between ranks."""
        return cls("llama-60m-random", 512, 1408, 8, 8, 4)

    @classmethod
    def tiny(cls) -> RandomModel:
        return cls("llama-tiny-random", 128, 256, 4, 8, 4, 4096)

    @classmethod
    def tiny_mixture(cls) -> RandomModel:
        return cls("mixture-tiny-random", 128, 64, 4, 8, 4, 4096, experts=8, chosen=2)


def given_or_random(model: str | Path | None, folder: Path, say: Callable[[str], None], *, quick: bool) -> Path:
    """The directory of ``model`` ("demo", or a directory); without one that of a random Llama of half a billion
    parameters made in ``folder``, a tiny one with ``quick``."""
    if model is not None:
        return demo_path() if model == "demo" else Path(model)
    shape = RandomModel.tiny() if quick else RandomModel.half_billion()
    say(f"making a random {shape.name} model")
    return save_random_model(folder / shape.name, shape)


def save_random_model(directory: Path, shape: RandomModel, seed: int = 0) -> Path:
    """Save a bfloat16 model of ``shape`` with a tokenizer of its own; returns ``directory``."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    routed = {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "moe_intermediate_size": shape.intermediate,
        "head_dim": shape.hidden // shape.heads,
    }
    config = (Qwen3MoeConfig if shape.experts else LlamaConfig)(
        **(routed if shape.experts else {}),
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="bfloat16",
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(directory)
    save_tokenizer(directory, shape.vocabulary)
    return directory


def save_tokenizer(directory: Path, vocabulary: int) -> None:
    """One in which each id has a text of its own, so that every token shows in a stream."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts = ["<begin>", "<end>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    texts += [f"Ġ{number}" for number in range(len(texts), vocabulary)]  # Ġ: a space
    inner = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(texts[:vocabulary])}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=texts[0], eos_token=texts[1], pad_token=texts[2]
    ).save_pretrained(directory)
