"""The flags that choose a model and its split, as `serve` and `generate` share them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ferrule.cli.complete import hosts, served_models

DEMO = "demo"
DEMO_RANKS = 2
"""The embedded model would fit many times over; it is split so that there is something to see."""


MODEL = typer.Argument(
    metavar="MODEL",
    help="A Hugging Face directory, a GGUF file, a hub id (owner/name), or demo.",
    autocompletion=served_models,
)
Tp = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Tensor parallel: cut every layer into N ranks' parts.")
]
Pp = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Pipeline parallel: cut the stack of layers into N stages.")
]
ExpertParallel = Annotated[
    bool,
    typer.Option("--expert-parallel", help="Give routed experts whole to the ranks of --tp, instead of cutting each."),
]
ExpertExchange = Annotated[
    bool,
    typer.Option(
        "--expert-exchange",
        help="The same, and send each token to the ranks of its experts only, instead of all tokens to all of them.",
    ),
]
Cp = Annotated[
    int | None,
    typer.Option(
        "--context-parallel", "--cp", min=1, metavar="N",
        help="N ranks hold the layers whole and share out keys and values: sequences may be N times as long.",
    ),
]  # fmt: skip
Shares = Annotated[
    str | None,
    typer.Option(metavar="N,N…", help="How large the parts of --tp are to each other, such as 4,2,1; else equal."),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option("--dtype", help="What to compute in; auto is what the weights were saved in."),
]
Weights = Annotated[
    Literal["int8", "int4"] | None,
    typer.Option("--weights", help="Quantise plain weights to this while they are loaded; left out: as stored."),
]
KvCache = Annotated[
    Literal["auto", "int8", "int4"],
    typer.Option(
        "--kv-cache",
        envvar="FERRULE_KV_CACHE",
        help="Keep keys and values as numbers that are computed in (auto), or quantised: more context, less to read.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Where ranks compute: cpu, cuda (NVIDIA, AMD), xpu, mps, cuda:1, several of these, or auto; "
        "the default is cpu.",
    ),
]
MaxContext = Annotated[
    int | None, typer.Option(min=1, metavar="TOKENS", help="Most tokens of prompt and answer together.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="CPU threads per rank; the default shares the cores.")
]
SelfTest = Annotated[
    bool,
    typer.Option(
        "--self-test/--no-self-test",
        envvar="FERRULE_SELF_TEST",
        help="Compare a split model with the same model in one piece before it is ready.",
    ),
]
Graphs = Annotated[
    bool,
    typer.Option(
        "--graphs/--no-graphs",
        envvar="FERRULE_GRAPHS",
        help="Capture the steps of answers as graphs, on devices that have them (cuda).",
    ),
]
PrefixCache = Annotated[
    bool,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        envvar="FERRULE_PREFIX_CACHE",
        help="Keep what was computed of prompts, for those that begin alike.",
    ),
]
PrefixDisk = Annotated[
    str | None,
    typer.Option(
        "--prefix-cache-disk",
        envvar="FERRULE_PREFIX_CACHE_DISK",
        metavar="SIZE|off",
        help="Keep it on each rank's disk, too, in so much, such as 8GiB: it is there after a restart. "
        "The files hold what prompts were made into.",
    ),
]
PrefillTp = Annotated[
    str | None,
    typer.Option(
        "--prefill-tp",
        metavar="N|auto|off",
        help="Compute prompts on N further ranks, each layer cut in N parts; those of --tp make the answers. auto: "
        "where the planner finds that it pays.",
    ),
]
PrefillDevice = Annotated[
    str | None,
    typer.Option(
        "--prefill-device",
        metavar="NAME",
        help="Where the ranks of --prefill-tp compute, as --device; left out: as the others.",
    ),
]
PrefillHosts = Annotated[
    str | None,
    typer.Option(
        "--prefill-hosts",
        metavar="A,B",
        help="In a cluster: the hosts of the ranks of --prefill-tp; the other ones make the answers.",
        autocompletion=hosts,
    ),
]
InterTokenLimit = Annotated[
    str,
    typer.Option(
        "--inter-token-limit",
        envvar="FERRULE_INTER_TOKEN_LIMIT",
        metavar="auto|2x|80ms|off",
        help="How long a step of answers may take when prompts are computed beside them: so many times as long as "
        "without, or a time; off: prompts first. auto: 2x, and more where more prompts wait than answers run.",
    ),
]

Speculate = Annotated[
    str,
    typer.Option(
        "--speculate",
        envvar="FERRULE_SPECULATE",
        metavar="ngram[:K]|mtp[:K]|draft=MODEL[:K]|off",
        help="Guess up to K tokens (8) and compute them in one step: the same answers, sooner. ngram: from what the "
        "text so far has said, for answers that repeat themselves or the prompt; mtp: by the model's own layer for "
        "that, if it has one; draft: by a small MODEL of the same tokens.",
    ),
]

StreamWeights = Annotated[
    str | None,
    typer.Option(
        "--stream-weights",
        envvar="FERRULE_STREAM_WEIGHTS",
        metavar="SIZE|auto|off",
        help="Keep weights of at most so much in each rank's memory, such as 24GiB, and read the others from its disk "
        "with every token; auto: where they do not fit, as many as leave room for caches.",
    ),
]


Encrypt = Annotated[
    bool | None,
    typer.Option(
        "--encrypt/--no-encrypt",
        help="Encrypt what ranks say over cables (TLS 1.3); if left out, as FERRULE_ENCRYPT says on each host.",
    ),
]
