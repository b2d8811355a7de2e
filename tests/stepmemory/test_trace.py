"""A trace of memory: its peak, what lay there, and what CUDA's allocator would have reserved."""

from frugan.stepmemory.tracker import CLOSE_BYTES, Trace
from frugan.wording import MIB


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


def test_at_a_limit_free_segments_are_given_back() -> None:
    """30 MiB go before 40 are asked for: 70 are reserved where nothing limits it, and 40 are enough."""
    trace = Trace()
    trace.free(trace.make(30 * MIB, "temporaries", "D"))
    trace.free(trace.make(40 * MIB, "temporaries", "G"))
    unlimited = trace.replay()
    assert unlimited.reserved_bytes == 70 * MIB
    assert 40 * MIB <= trace.needed_bytes(unlimited) <= 40 * MIB + CLOSE_BYTES


def test_fragments_count_at_a_limit_too() -> None:
    """A small piece of a segment holds all of it: what is asked for next finds no room there."""
    trace = Trace()
    whole = trace.make(40 * MIB, "temporaries", "D")
    trace.free(whole)
    trace.make(12 * MIB, "parameters", "D")  # out of the segment of 40
    trace.free(trace.make(30 * MIB, "temporaries", "G"))
    unlimited = trace.replay()
    assert trace.needed_bytes(unlimited) == unlimited.reserved_bytes == 70 * MIB


def test_small_requests_are_added_at_a_limit() -> None:
    trace = Trace()
    for _ in range(5):
        trace.make(MIB, "parameters", "before")
    trace.free(trace.make(30 * MIB, "temporaries", "D"))
    trace.free(trace.make(40 * MIB, "temporaries", "G"))
    needed = trace.needed_bytes(trace.replay())
    assert 46 * MIB <= needed <= 46 * MIB + CLOSE_BYTES


def test_a_block_that_is_not_split_counts_whole() -> None:
    """As `torch.cuda.max_memory_allocated` has it: of 20 MiB 19.5 were asked for, and a rest of 0.5 is not cut off."""
    trace = Trace()
    first = trace.make(9 * MIB, "temporaries", "D")  # of a segment of 20 MiB: 11 are left
    trace.make(10 * MIB + MIB // 2, "temporaries", "D/block")
    trace.free(first)
    replayed = trace.replay()
    assert trace.peak().size_bytes == 19 * MIB + MIB // 2
    assert replayed.taken_in("D") >= replayed.taken_bytes > trace.peak().size_bytes - 1


def test_what_a_step_replaces_twice_is_there_once_in_the_next() -> None:
    trace = Trace()
    value, begins = trace.make(512, "optimizer", "before"), 1
    in_between = trace.make(512, "temporaries", "D")
    trace.free(value)
    trace.free(trace.make(2048, "temporaries", "G"))
    trace.make(512, "temporaries", "G")
    trace.free(in_between)
    assert trace.replay(1, begins).taken_bytes == trace.replay(3, begins).taken_bytes == 512 + 2048


def test_what_is_inserted_counts_between_two_events() -> None:
    trace = _trace()
    trace.insert(2 * MIB, "D", 1, 3)
    assert [size // MIB for size in trace.live_bytes()] == [30, 32, 44, 49, 47, 42, 48, 36, 30, 0]
