"""The control loop of an agent, whatever goes wrong in it."""

import asyncio
import logging

from ferrule.agent.control_loop import ControlLoop


class Stumbling(ControlLoop):
    def __init__(self):
        super().__init__()
        self.rounds = 0
        self.recovered = asyncio.Event()

    async def reconcile(self):
        self.rounds += 1
        if self.rounds == 1:
            self.look()  # so that the next round comes at once
            raise KeyError("strix-9")
        self.recovered.set()


def test_an_error_that_was_not_foreseen_is_logged_and_the_loop_goes_on(caplog):
    async def run():
        loop = Stumbling()
        loop.start()
        await asyncio.wait_for(loop.recovered.wait(), 5)
        await loop.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "strix-9" in str(record.exc_info[1])
