"""When grids are due."""

from frugan.engine.durations import Duration, GridClock, Length


def due(clock: GridClock, step_seconds: float, steps: int, took_seconds: float = 1.0) -> list[int]:
    steps_due = []
    for step in range(1, steps + 1):
        if clock.due(step, step * step_seconds):
            clock.drew(step * step_seconds, took_seconds)
            steps_due.append(step)
    return steps_due


def test_fast_steps_give_grids_at_the_first_and_by_the_interval() -> None:
    assert due(GridClock(Duration.parse("400 steps"), 8), 0.01, 1000, took_seconds=0.01) == [
        *(1, 10, 100, 400, 800, 1000),
    ]


def test_grids_take_a_small_part_of_a_training_of_a_dozen_steps() -> None:
    """A sheet takes as long as three steps, which a share of the length would ask for at nearly each."""

    def clock() -> GridClock:
        return GridClock(1 / 8, 8, length=Length.of(12))

    taken = due(clock(), 20.0, 12, took_seconds=10.0)
    assert taken == [1, 5, 9]
    assert due(clock(), 20.0, 12, took_seconds=0.1) == [1, 2, 3, 5, 6, 8, 9, 10, 11, 12]  # they cost next to nothing
    # what a person asks for in so many words is done
    assert due(GridClock(Duration.parse("2 steps"), 8), 20.0, 6, took_seconds=60.0) == [1, 2, 4, 6]
    again = clock()
    assert again.times_left(0, 12, 240.0) == 8
    again.drew(0.0, took_seconds=10.0)
    assert again.times_left(0, 12, 240.0) == 3  # as many as there will be, for whoever keeps a time for them


def test_slow_steps_give_grids_by_the_clock_and_ever_fewer() -> None:
    steps = due(GridClock(Duration.parse("1k steps"), 8), 60.0, 240)
    assert steps[:5] == [1, 6, 10, 15, 20]  # five minutes after the last
    assert steps[-1] - steps[-2] > 15  # a tenth of four hours
    assert len(steps) < 30


def test_grids_that_take_long_are_not_asked_for_by_the_clock() -> None:
    assert due(GridClock(Duration.parse("1k steps"), 8), 60.0, 70, took_seconds=60.0) == [1, 10, 60]


def test_a_resumed_run_waits_from_where_it_goes_on() -> None:
    clock = GridClock(Duration.parse("1k steps"), 8, 1000.0)
    assert not clock.due(11, 1010.0)
    assert clock.due(12, 1300.0)
