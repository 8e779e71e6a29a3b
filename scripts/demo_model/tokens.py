"""The tokenizer: byte-level BPE trained on the model's own text, five special tokens and the chat template."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from demo_model.conversations import Turn

END, PAD = "<|end|>", "<|pad|>"
ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
SPECIAL = (END, PAD, *ROLES.values())
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


def train_tokenizer(texts: Iterable[str], vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """A tokenizer of `vocab_size` tokens that can spell any bytes; `context` is the longest input in tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=list(ROLES.values()),
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def encode_plain(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[int], list[int]]:
    """Token ids of a document and its end, and the same ids as labels."""
    ids = [*tokenizer.backend_tokenizer.encode(text).ids, tokenizer.eos_token_id]
    return ids, list(ids)


def encode_chat(tokenizer: PreTrainedTokenizerFast, turns: Iterable[Turn]) -> tuple[list[int], list[int]]:
    """Token ids of a conversation as the chat template renders it; labels are -100 outside the assistant's words."""
    ids: list[int] = []
    labels: list[int] = []
    for role, text in turns:
        words = [*tokenizer.backend_tokenizer.encode(text).ids, tokenizer.eos_token_id]
        ids += [tokenizer.convert_tokens_to_ids(ROLES[role]), *words]
        labels += [-100, *(words if role == "assistant" else [-100] * len(words))]
    return ids, labels
