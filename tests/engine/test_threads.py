"""How many threads: by what a step takes with them."""

from collections.abc import Iterator

import pytest
import torch

from frugan.engine.run.threads import candidates, fastest, machine_name, threads_put_back, time_counts


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    with threads_put_back():
        yield


def test_candidates_are_powers_of_two_and_all_cores() -> None:
    assert candidates(1) == (1,)
    assert candidates(2) == (1, 2)
    assert candidates(6) == (1, 2, 4, 6)
    assert candidates(8) == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({1: 0.15, 2: 3.7}, 1),  # a machine that does something else as well
        ({1: 0.30, 2: 0.17}, 2),
        ({1: 0.30, 2: 0.29}, 1),  # hardly faster: fewer are disturbed less
        ({1: 0.20, 2: 0.15, 4: 0.19, 8: 0.35}, 2),  # a small network on a laptop
        ({1: 9.0, 2: 5.0, 4: 2.7, 8: 1.5}, 8),
    ],
)
def test_the_fastest_is_taken(seconds: dict[int, float], taken: int) -> None:
    seconds_of = time_counts(lambda: seconds[torch.get_num_threads()], list(seconds))
    assert fastest(seconds_of) == taken


def test_what_is_far_off_is_not_run_at_length() -> None:
    def scaling() -> float:
        ran.append(torch.get_num_threads())
        return 64 / ran[-1]

    ran: list[int] = []
    time_counts(scaling, (1, 2, 4, 8, 16, 32, 64))
    assert 1 not in ran
    assert 2 not in ran
    busy = {1: 0.2, 2: 39.0}
    ran.clear()

    def crowded() -> float:
        ran.append(torch.get_num_threads())
        return busy[ran[-1]]

    assert time_counts(crowded, (1, 2)) == busy
    assert ran.count(2) == 1


def test_one_disturbed_timing_does_not_decide() -> None:
    calls: list[int] = []

    def disturbed() -> float:
        calls.append(torch.get_num_threads())
        slow = len(calls) in (5, 6)  # something else ran just then
        return {1: 0.3, 2: 0.2}[calls[-1]] * (2 if slow else 1)

    assert fastest(time_counts(disturbed, (1, 2))) == 2


def test_a_stop_ends_it() -> None:
    def never() -> float:
        raise AssertionError

    assert time_counts(never, (1, 2), lambda: True) == {}


def test_threads_are_put_back_and_the_machine_has_a_name() -> None:
    before = torch.get_num_threads()
    with threads_put_back():
        torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before
    assert machine_name().endswith("cores")
