"""The search for the highest rate that holds (experiments/server/qos.py), against servers that a formula stands for."""

import pytest

from experiments.server.qos import FIRST_RATE, PRECISION, STEP, WINDOWS_MAX, Search, meets_target


def found(first: float, answer) -> tuple[Search, list[float]]:
    """A search that has come to its end, and the rates that it asked for."""
    search, asked = Search(first), []
    while search.rate is not None:
        asked.append(search.rate)
        search.note(answer(search.rate))
    return search, asked


@pytest.mark.parametrize("capacity", [FIRST_RATE * STEP**steps * 1.1 for steps in (-3, -1, 0, 1, 3)])
def test_the_rate_found_meets_the_target_and_is_close_to_the_limit(capacity):
    search, asked = found(FIRST_RATE, lambda rate: rate <= capacity)
    assert search.held <= capacity < search.failed
    assert search.failed / search.held <= PRECISION
    assert len(asked) <= WINDOWS_MAX


def test_a_rate_counts_as_failed_only_when_it_fails_twice():
    answers = iter([False, True, False, False])
    search = Search(FIRST_RATE)
    for _ in range(2):
        search.note(next(answers))
    assert (search.held, search.failed) == (FIRST_RATE, None)
    assert search.rate == FIRST_RATE * STEP
    for _ in range(2):
        search.note(next(answers))
    assert (search.held, search.failed) == (FIRST_RATE, FIRST_RATE * STEP)
    assert search.held < search.rate < search.failed


@pytest.mark.parametrize("answer", [True, False])
def test_a_search_without_an_end_is_given_up(answer):
    search, asked = found(FIRST_RATE, lambda _: answer)
    assert len(asked) == WINDOWS_MAX
    assert (search.held is None) is not answer


def test_a_rate_meets_the_target_if_its_p99_is_low_and_no_queue_grows():
    assert meets_target({"p99_us": 999.0, "requests_per_s": 99_000.0}, 100_000)
    assert not meets_target({"p99_us": 1000.0, "requests_per_s": 100_000.0}, 100_000)
    assert not meets_target({"p99_us": 10.0, "requests_per_s": 90_000.0}, 100_000)
