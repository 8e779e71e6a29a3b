"""One answer of a guest, asked for until it has ended: what goes on after a crash, and what the guest leaves untold."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ferrule.engine.guests.guest import Answer, Ask, Guest, Piece
from ferrule.engine.guests.running import Running
from ferrule.engine.host.requests import Request
from ferrule.engine.types import Token
from ferrule.errors import EngineError, first_line

SEED_STEP = 0x5E3779B1
"""An odd number: seeds of what goes on behind more tokens lie far apart."""
T = TypeVar("T")


async def pieces(running: Running, request: Request, most: int) -> AsyncGenerator[Piece]:
    """The answer to ``request`` behind what it has ``made``, which the caller keeps up to date, until one piece has a
    ``finish`` or the caller has enough; ``most``: tokens of the whole answer. Raises as `Running.stream` does, and
    `EngineError` for what is no answer."""
    guest = running.guest
    while True:
        ask, known = asked(guest, request, most)
        told = untold = 0  # tokens of this stream, and then those that are missing
        async with running.stream(guest.post(ask)) as events:
            answer = guest.answer(ask)
            async for event in events:
                for piece in _read(guest, partial(_all, answer, event), event):
                    untold = piece.untold
                    if untold and told + untold > len(known):
                        break
                    new = _beyond(guest, piece.tokens, known[told + untold :])
                    told += untold + len(piece.tokens)
                    untold = 0
                    if new or piece.finish is not None:
                        yield Piece(new, piece.finish)
                    if piece.finish is not None:
                        return
                if untold:
                    break
        if not untold:
            raise EngineError(f"{guest.name} ended an answer without saying why; please report this with its log")
        ask, known = asked(guest, request, most)
        found = await _whole(running, replace(ask, most=told + untold if known else untold))
        yield found._replace(tokens=_beyond(guest, found.tokens, known))
        if found.finish is not None:
            return


def asked(guest: Guest, request: Request, most: int) -> tuple[Ask, tuple[int, ...]]:
    """What to ask for, and the tokens with which the answer to that must begin: it is made anew."""
    made, params = tuple(request.made), request.params
    if not guest.resumes(params):
        return Ask(request.prompt, params, most), made
    if made:
        assert params.seed is not None
        seed = (params.seed + SEED_STEP * len(made)) % (1 << 31)
        params = replace(params, seed=seed, prompt_logprobs=None)
    return Ask(request.prompt, params, most - len(made), made), ()


async def _whole(running: Running, ask: Ask) -> Piece:
    """``ask.most`` tokens of an answer in one piece. It may end before."""
    guest = running.guest
    data = await running.whole(guest.whole(ask))
    found = _read(guest, lambda: guest.whole_answer(ask, data), data)
    if not found.tokens or (len(found.tokens) < ask.most and found.finish is None):
        raise EngineError(f"{guest.name} made {len(found.tokens)} tokens of {ask.most} without saying why")
    ended = found.finish if found.finish == "stop" else None  # the length is our own
    return found._replace(finish=ended)


def _all(answer: Answer, event: bytes) -> list[Piece]:
    return list(answer.read(event))


def _beyond(guest: Guest, tokens: tuple[Token, ...], known: tuple[int, ...]) -> tuple[Token, ...]:
    """Those of ``tokens`` behind the ``known`` ones, with which they begin. Raises `EngineError` where they do not."""
    if any(token.id != wanted for token, wanted in zip(tokens, known, strict=False)):
        raise EngineError(
            f"{guest.name} crashed, and made this answer anew with other tokens than it had begun with; ask again"
        )
    return tokens[len(known) :]


def _read(guest: Guest, read: Callable[[], T], data: bytes) -> T:
    try:
        return read()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        begin = data[:200].decode(errors="replace")
        raise EngineError(f"{guest.name} said what is no answer ({first_line(error)}): {begin!r}") from None
