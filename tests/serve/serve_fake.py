"""A server process of a scripted engine: prints its URL, serves until SIGINT. Tokenizing "slow" takes two seconds."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

from fake_engine import FakeEngine

from ferrule.serve.http.listener import listen
from ferrule.serve.server import serve


class SlowEngine(FakeEngine):
    def __post_init__(self) -> None:
        super().__post_init__()
        quick = self.tokenizer.encode

        def encode(text: str, *, add_special_tokens: bool = True) -> list[int]:
            if text.startswith("slow"):
                say("tokenizing")
                time.sleep(2)
            return quick(text, add_special_tokens=add_special_tokens)

        self.tokenizer.encode = encode  # type: ignore[method-assign]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def start() -> SlowEngine:
    return SlowEngine(max_context=4096)


def main() -> None:
    listener = listen("127.0.0.1", 0, api_key=None, encrypted=False)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    asyncio.run(serve(start, listener, api_key=None, on_ready=lambda _: say(url)))
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
