"""A trace of memory: its peak, what lay there, and what CUDA's allocator would have reserved."""

from frugan.memory.allocator import MIB
from frugan.memory.trace import Trace


def _trace() -> Trace:
    trace = Trace()
    weights = trace.make(30 * MIB, "parameters", "before")
    activation = trace.make(12 * MIB, "saved activations", "D/block")
    temporary = trace.make(5 * MIB, "temporaries", "D/block")
    trace.free(temporary)
    gradient = trace.make(6 * MIB, "gradients", "G")
    for number in (activation, gradient, weights):
        trace.free(number)
    return trace


def test_peak_is_broken_down_where_it_falls() -> None:
    peak = _trace().peak()
    assert (peak.size_bytes, peak.place) == (48 * MIB, "G")
    assert peak.categories == {"parameters": 30 * MIB, "saved activations": 12 * MIB, "gradients": 6 * MIB}


def test_peak_of_one_phase() -> None:
    peak = _trace().peak(lambda place: place.startswith("D/"))
    assert (peak.size_bytes, peak.place) == (47 * MIB, "D/block")
    assert _trace().peak(lambda place: place == "E").size_bytes == 0


def test_reserved_is_what_segments_take() -> None:
    """30 and 12 of their own, 5 and then 6 out of one of 20."""
    assert _trace().replay().reserved_bytes == (30 + 12 + 20) * MIB


def test_live_bytes_after_each_event() -> None:
    assert [size // MIB for size in _trace().live_bytes()] == [30, 42, 47, 42, 48, 36, 30, 0]
