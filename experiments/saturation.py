"""Processor time for a request beside that of others: which rounds count, and the ratio.

Each round measures every side in closed loop, and gives one ratio: the cost of the cheapest of the others in that round
over ours. What else the machine does meanwhile weighs on all sides of a round. The result is the median of these
ratios, with their range. The ratio of the medians of the costs, which are taken each by itself, is beside it: where the
two differ much, so did the rounds.

A side is saturated if it used at least SATURATED_SHARE of its core: below that, each request pays for a wake-up that it
would share with others under load. Rounds are judged by the strictest class that ROUNDS_SATURATED_MIN or more of them
reach, and only those count:

    all       every side was saturated: the costs compare fairly
    theirs    the others were, ours was not, because the load and what else shares its core were too slow to keep ours
              busy: our requests pay for wake-ups, theirs do not, so the ratio is a lower bound
    neither   all rounds count, and the ratio says little
"""

import statistics
from collections import Counter
from collections.abc import Sequence

SATURATED_SHARE = 0.9
ROUNDS_SATURATED_MIN = 3

# The figures of the load generator that are read here.
COST, SHARE = "server_cpu_us_per_request", "server_cpu_share"


def counted_rounds(rounds: list[dict[str, dict]], ours: str, others: Sequence[str]) -> tuple[str, list]:
    """The strictest class that enough rounds reach, and those rounds."""

    def saturated(*names: str) -> list[dict[str, dict]]:
        return [runs for runs in rounds if all(runs[name][SHARE] >= SATURATED_SHARE for name in names)]

    classes = {"all": saturated(ours, *others), "theirs": saturated(*others), "neither": rounds}
    return next(
        (name, counted)
        for name, counted in classes.items()
        if len(counted) >= ROUNDS_SATURATED_MIN or name == "neither"
    )


def compare(rounds: list[dict[str, dict]], ours: str, others: Sequence[str]) -> tuple[dict, list[dict[str, dict]]]:
    """The ratio and how it came about, and the rounds that counted."""
    saturation, counted = counted_rounds(rounds, ours, others)
    cheapest = [min(others, key=lambda name: runs[name][COST]) for runs in counted]
    ratios = [runs[name][COST] / runs[ours][COST] for name, runs in zip(cheapest, counted, strict=True)]
    medians = {name: median(counted, name, COST) for name in (ours, *others)}
    comparison = {
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratio_of_medians": min(medians[name] for name in others) / medians[ours],
        # How often each of the others was the cheapest, the most frequent first.
        "cheapest": dict(Counter(cheapest).most_common()),
        "rounds": len(rounds),
        "rounds_counted": len(counted),
        "saturation": saturation,
    }
    return comparison, counted


def median(rounds: list[dict[str, dict]], name: str, figure: str) -> float:
    """The median of a figure of one side."""
    return statistics.median(runs[name][figure] for runs in rounds)
