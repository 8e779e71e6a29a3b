"""Writes the model folder: bfloat16 weights, tokenizer, generation settings and the model card."""

import platform
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo_model.corpus import Corpus
from demo_model.exam import answers, grade
from demo_model.training import Losses, Recipe

SAMPLES = ("Hello", "What does json.dumps do?", "What is the os module?", "Write about Python dictionaries")
LARGEST = 8_000_000  # bytes of weights: the file travels in every wheel

CARD = """\
---
license: other
license_name: psf-2.0
language: en
library_name: transformers
tags: [demonstration]
---
# Ferrule's demonstration model

A Llama-style model of {parameters:,} parameters ({layers} layers, width {hidden}, {heads} heads over {kv_heads}
key-value heads, tied embeddings, a context of {context} tokens) with its own byte-level BPE tokenizer of {vocab:,}
tokens. It exists so that Ferrule has a real model to split over ranks without downloading anything.

## What it is good for

It demonstrates. It answers short questions about Python's standard library in fluent English and is often right about
common names, but it also invents, mixes functions up and knows nothing outside its text. Do not rely on what it says.
It reads and writes English only, remembers little of a long conversation, and cannot call tools.

## What it was trained on

- The docstrings of the standard library of Python {python}, read from its source files and, for well-known modules
  and the built-in types, from the running interpreter ({documents:,} documents with the next item).
- The language reference in `pydoc_data.topics`, part of the same library.
- {lessons:,} answers with several ways to ask for each: most made from those docstrings, some written for Ferrule
  (`scripts/demo_model/written.toml`: greetings, modules, language topics, small examples).

SHA-256 of that text: `{sha256}`

Training: {steps:,} steps of {batch:,} tokens ({tokens:.1f} million tokens), Muon and AdamW with a cosine schedule,
bfloat16 autocast, seed {seed}, torch {torch}. Loss at the end of the short rows, by then nearly all conversations:
{short_loss:.2f} nats per token; at the end of the long rows, half of them documents: {long_loss:.2f}. Only the
assistant's words count in conversations. Nothing was held out: this is a measure of memory, not of understanding.

Of {questions} questions each, answered word for word as in the text (greedy): {often:.0%} where the answer was repeated
often (the names people ask about most, and what was written for Ferrule), {sometimes:.0%} where sometimes (the other
names of well-known modules), {rarely:.0%} where rarely (the rest of the library).

## Make it again

```
python scripts/train_demo_model.py --steps {steps} --out DIR
```

on the CPU with one thread gives the same text and follows the same recipe; another processor or another version of
torch changes the weights in their last digits. The text, and so its hash, changes with the version of Python and,
slightly, with the platform.

## Licence

The docstrings and the language reference are part of Python and come under the Python Software Foundation License
Version 2 (Copyright © 2001 Python Software Foundation; All Rights Reserved). The texts written for Ferrule come
under Ferrule's own licence, Apache-2.0, and so do the weights as far as anything in them is ours to license.

## Samples (greedy)

{samples}
"""


def export(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    recipe: Recipe,
    losses: Losses,
    out: Path,
) -> str:
    """Writes everything to `out`, and returns the sample answers that the model card shows.

    Raises:
        ValueError: the weights are larger than what may be shipped.
    """
    model = model.to(torch.bfloat16).eval()
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    weights = out / "model.safetensors"
    weights.chmod(0o644)  # safetensors writes it for its owner only, which no installed package can be
    size = weights.stat().st_size
    if size > LARGEST:
        raise ValueError(f"the weights take {size} bytes, more than the {LARGEST} that may be shipped")
    pairs = zip(SAMPLES, answers(model, tokenizer, SAMPLES), strict=True)
    samples = "\n\n".join(f"> {question}\n\n{answer}" for question, answer in pairs)
    card = CARD.format(
        parameters=model.num_parameters(),
        layers=recipe.layers,
        hidden=recipe.hidden,
        heads=recipe.heads,
        kv_heads=recipe.kv_heads,
        context=recipe.context,
        vocab=len(tokenizer),
        python=platform.python_version(),
        documents=len(corpus.documents),
        lessons=len(corpus.lessons),
        sha256=corpus.sha256,
        steps=recipe.steps,
        batch=recipe.rows * recipe.row,
        tokens=recipe.steps * recipe.rows * recipe.row / 1e6,
        seed=recipe.seed,
        torch=torch.__version__,
        short_loss=losses.short,
        long_loss=losses.long,
        questions=recipe.questions,
        **grade(model, tokenizer, corpus, recipe.questions),
        samples=samples,
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    return samples
