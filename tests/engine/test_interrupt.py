"""Ctrl-C is heard at once."""

import signal
import time
from collections.abc import Iterator

import pytest

from frugan.engine.requests import stop_on_signals


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Ctrl-C interrupts, also where these tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_request_is_acknowledged_at_once_and_the_second_stops(said: list[str]) -> None:
    with stop_on_signals(said.append) as stop:
        stop.doing = "step 12"
        signal.raise_signal(signal.SIGINT)
        end = time.monotonic() + 5
        while not said and time.monotonic() < end:
            time.sleep(0.005)
        assert stop.asked
        assert said == ["finishing step 12; Ctrl-C again stops now"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
