"""A report that does not wait for a driver that hangs."""

import threading
import time

from ferrule.process import Sensor


def test_what_hangs_is_left_out_and_told_again_when_it_answers():
    go_on, calls = threading.Event(), []

    def read():
        calls.append(1)
        assert go_on.wait(20)
        return 41.0

    sensor = Sensor("heat", read, None)
    for _ in range(3):
        sensor.begin()
        assert sensor.value(time.monotonic() + 0.01) is None
    assert len(calls) == 1
    go_on.set()
    sensor.begin()
    assert sensor.value(time.monotonic() + 20) == 41.0


def test_what_fails_is_told_in_the_log_and_left_out(caplog):
    sensor = Sensor("power", lambda: 1 / 0, -1)
    sensor.begin()
    assert sensor.value(time.monotonic() + 20) == -1
    assert "power cannot be read" in caplog.text
