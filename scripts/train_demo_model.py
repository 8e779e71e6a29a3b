"""Trains the small model that Ferrule ships, from the documentation inside Python's own standard library.

    python scripts/train_demo_model.py --out build/demo          # the shipped recipe: well under an hour on one core
    python scripts/train_demo_model.py --quick --out build/demo  # a smoke run of seconds

Needs the `engine` extra (torch, transformers, tokenizers, safetensors) and nothing from the network.
"""

import argparse
import dataclasses
from pathlib import Path

import torch
from demo_model.corpus import build
from demo_model.export import export
from demo_model.tokens import train_tokenizer
from demo_model.training import Recipe, train

QUICK = Recipe(
    steps=8,
    rows=4,
    row=64,
    context=256,
    vocab_size=512,
    hidden=64,
    layers=2,
    inner=128,
    warm_up=2,
    checkpoint_every=5,
    long_share=0.25,
    questions=4,
)


def main() -> None:
    """Reads the corpus, trains, exports and shows a few answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model; made if missing")
    parser.add_argument("--steps", type=int, help=f"training steps (default {Recipe.steps})")
    parser.add_argument("--quick", action="store_true", help="a tiny model on a little text, to see that all works")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; equal results need equal numbers")
    parser.add_argument("--checkpoint", type=Path, help="file to keep the state in, and to go on from if it exists")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    recipe = QUICK if args.quick else Recipe()
    if args.steps is not None and args.steps < 10:
        parser.error("--steps must be 10 or more, so that there are steps on short and on long rows")
    if args.steps:
        recipe = dataclasses.replace(recipe, steps=args.steps)
    corpus = build(limit=300 if args.quick else None)
    print(f"corpus    {len(corpus.documents)} documents, {len(corpus.lessons)} lessons, sha256 {corpus.sha256}")
    tokenizer = train_tokenizer(corpus.texts(), recipe.vocab_size, recipe.context)
    tokens = sum(len(tokenizer.backend_tokenizer.encode(document).ids) for document in corpus.documents)
    print(f"tokenizer {len(tokenizer)} tokens; the documents are {tokens} of them", flush=True)
    model, losses = train(recipe, corpus, tokenizer, args.checkpoint)
    samples = export(model, tokenizer, corpus, recipe, losses, args.out)
    print(f"model     {model.num_parameters()} parameters, loss {losses.short:.3f}, written to {args.out}")
    print(f"\n{samples}")


if __name__ == "__main__":
    main()
