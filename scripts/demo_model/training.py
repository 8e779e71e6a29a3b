"""The model's shape and its training loop."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo_model.batches import Packer
from demo_model.corpus import Corpus


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result besides the text."""

    steps: int = 3000
    rows: int = 8
    row: int = 256
    context: int = 1024
    long_share: float = 0.1  # of the steps, at the end, on rows as long as the context
    vocab_size: int = 3072
    hidden: int = 256
    layers: int = 6
    inner: int = 384
    heads: int = 8
    kv_heads: int = 4
    rate: float = 3e-3
    weight_decay: float = 0.1
    warm_up: int = 100
    plain_start: float = 0.6  # share of plain documents among the tokens, at the first and the last step
    plain_end: float = 0.15
    seed: int = 8420


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A freshly initialised model in float32."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if step < recipe.warm_up:
        return recipe.rate * (step + 1) / recipe.warm_up
    progress = (step - recipe.warm_up) / max(1, recipe.steps - recipe.warm_up)
    return recipe.rate * 0.5 * (1 + math.cos(math.pi * progress))


def batches(recipe: Recipe, corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, ...]]:
    """One batch per step: short rows first, rows of the whole context at the end, fewer and fewer documents."""
    short = Packer(corpus, tokenizer, recipe.rows, recipe.row, recipe.seed)
    wide = Packer(corpus, tokenizer, max(1, recipe.rows * recipe.row // recipe.context), recipe.context, recipe.seed)
    first_wide = round(recipe.steps * (1 - recipe.long_share))
    for step in range(recipe.steps):
        share = recipe.plain_start + (recipe.plain_end - recipe.plain_start) * step / recipe.steps
        yield (short if step < first_wide else wide).batch(share)


def train(
    recipe: Recipe, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, checkpoint: Path | None
) -> tuple[LlamaForCausalLM, float]:
    """The trained model and its mean loss (nats per token) over the last tenth of the steps.

    With `checkpoint`, the state is kept there every 200 steps, and a run that finds one goes on from it to the same
    result as a run that was never stopped.
    """
    model = new_model(recipe, tokenizer)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    gains = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": gains, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    losses: list[float] = []
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
        print(f"going on from step {len(losses)} of {checkpoint}")
    tokens, since = 0, time.monotonic()
    resumed = len(losses)
    for step, (ids, labels) in enumerate(batches(recipe, corpus, tokenizer)):
        if step < resumed:
            continue
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        tokens += ids.numel()
        if (step + 1) % 50 == 0 or step + 1 == recipe.steps:
            seconds = time.monotonic() - since
            recent = sum(losses[-50:]) / len(losses[-50:])
            speed = tokens / seconds
            print(f"step {step + 1:5d}  loss {recent:.3f}  {speed:6.0f} tokens/s  {seconds:6.0f} s", flush=True)
        if checkpoint and (step + 1) % 200 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            torch.save(state, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)
    last = losses[-max(1, len(losses) // 10) :]
    return model, sum(last) / len(last)
