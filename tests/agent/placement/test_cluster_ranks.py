import asyncio
import socket

import pytest

from ferrule.agent.placement.ranks import _all_or_none


def test_where_one_host_fails_nothing_of_the_others_is_left():
    ours, theirs = socket.socketpair()
    ended = []

    async def made():
        return ours

    async def slow():
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(True)

    async def fails():
        await asyncio.sleep(0)
        raise OSError("no way there")

    with theirs:
        with pytest.raises(OSError, match="no way"):
            asyncio.run(_all_or_none([made(), slow(), fails()]))
        assert ended == [True]
        assert ours.fileno() == -1
