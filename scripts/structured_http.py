#!/usr/bin/env python3
"""Time per token of answers to the tests' real schemas, over HTTP, beside free answers of as many tokens.

    scripts/structured_http.py [ROUNDS]

The embedded model at temperature 1, one stream after the other, from the first piece of an answer to its last. A round
has each schema with three seeds. Needs a quiet machine. At most 5 % more than free answers is wanted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))

import httpx
from real_schemas import SCHEMAS
from server_process import start_server

SEEDS = 3
LEAST = 16
"""Tokens of an answer that is counted."""


def ask(client: httpx.Client, **body: Any) -> tuple[int, float]:
    """Tokens of an answer, and seconds from its first piece to its last."""
    body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 1.0}
    times, tokens = list[float](), 0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                usage = json.loads(line.removeprefix("data: ")).get("usage")
                tokens = usage["completion_tokens"] if usage else tokens
                times.append(time.perf_counter())
    return tokens, times[-2] - times[1]  # the first has the role, the last the usage


def per_token(client: httpx.Client) -> tuple[float, float, int]:
    """Seconds of a token that a schema constrains, and of a free one; of so many."""
    constrained = free = 0.0
    count = 0
    for name, schema in SCHEMAS.items():
        told = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        for seed in range(SEEDS):
            asked = {"messages": [{"role": "user", "content": f"Write JSON: {name}"}], "seed": seed}
            tokens, seconds = ask(client, **asked, response_format=told)
            if tokens >= LEAST:
                made, freely = ask(client, **asked, max_tokens=tokens, ignore_eos=True)
                if made != tokens:
                    sys.exit(f"{made} tokens instead of {tokens}")
                constrained, free, count = constrained + seconds, free + freely, count + tokens
    return constrained / count, free / count, count


def main(rounds: int) -> int:
    server = start_server("--demo", "--no-self-test")
    slower = []
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for _ in range(rounds):
                constrained, free, count = per_token(client)
                slower.append(constrained / free - 1)
                sys.stdout.write(
                    f"{count} tokens: {constrained * 1e3:.3f} ms with a schema, {free * 1e3:.3f} ms without: "
                    f"{slower[-1]:+.1%}\n"
                )
    finally:
        server.stop()
    middle = sorted(slower)[len(slower) // 2]
    sys.stdout.write(f"a token of a schema takes {middle:+.1%} (at most +5 % is wanted)\n")
    return 0 if middle <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
