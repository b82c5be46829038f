"""Figures of a run, as text and as JSON, and a picture of staleness over time with the faults marked."""

from collections import Counter

from chaos.checker import KINDS
from chaos.faults import Event
from chaos.run import Outcome

BOUNDS_MS = (10, 100, 500, 1000, 2000, 5000, 10_000, 20_000, float("inf"))
SHOWN = 12
BIN_S = 0.1
# A read just after the end of a fault may still be old because of it.
AFTER_S = 2.0


def share(values: list[float], part: float) -> float:
    """The value that this part of the sorted values does not exceed; 0 of none."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def stale_during(outcome: Outcome, begin_s: float, end_s: float) -> list[float]:
    """Ages, in milliseconds, of the old values that reads returned between two times, in order of age."""
    samples = outcome.samples
    return sorted(age for at, age in zip(samples.at_s, samples.stale_ms, strict=True) if begin_s <= at < end_s)


def histogram(ages_ms: list[float]) -> dict[str, int]:
    """How many are below each bound."""
    counted: Counter[str] = Counter()
    for age in ages_ms:
        bound = next(bound for bound in BOUNDS_MS if age <= bound)
        counted[f"up to {bound} ms" if bound != float("inf") else "more"] += 1
    names = [f"up to {bound} ms" for bound in BOUNDS_MS[:-1]] + ["more"]
    return {name: counted[name] for name in names if counted[name]}


def figures(outcome: Outcome) -> dict:
    """Everything that a run measured."""
    ages = sorted(outcome.samples.stale_ms)
    return {
        "seed": outcome.settings.plan.seed,
        "database": outcome.database,
        "seconds": round(outcome.seconds, 1),
        "converged_s": round(outcome.converged_s, 1),
        "values held at the end": outcome.held,
        "counts": dict(sorted(outcome.counts.items())),
        "faults": dict(sorted(Counter(event.fault.name for event in outcome.events).items())),
        "faults left out": outcome.skipped,
        "staleness": {
            "p50_ms": round(share(ages, 0.5), 1),
            "p99_ms": round(share(ages, 0.99), 1),
            "max_ms": round(ages[-1], 1) if ages else 0.0,
            "reads": histogram(ages),
        },
        "by second": by_second(outcome),
        "processes": outcome.processes,
        "schedule": [event_figures(outcome, event) for event in sorted(outcome.events, key=lambda e: e.begin_s)],
        "violations": [vars(violation) for violation in outcome.violations],
    }


def by_second(outcome: Outcome) -> list[dict[str, float]]:
    """For each second: commits, cached reads, reads of old values, reads without an answer, and the oldest value in
    ms."""
    counts = {"commits": 0, "reads": 0, "old reads": 0, "failed reads": 0, "oldest_ms": 0.0}
    seconds = [dict(counts) for _ in range(int(outcome.seconds) + 1)]

    def second_of(at_s: float) -> dict[str, float]:
        return seconds[min(max(0, int(at_s - outcome.start_s)), len(seconds) - 1)]

    for name, counted in (("reads", outcome.samples.reads), ("failed reads", outcome.samples.failures)):
        for tenth, number in counted.items():
            second_of(tenth / 10)[name] += number
    for at in outcome.samples.commits_s.values():
        second_of(at)["commits"] += 1
    for at, age in zip(outcome.samples.at_s, outcome.samples.stale_ms, strict=True):
        second = second_of(at)
        second["old reads"] += 1
        second["oldest_ms"] = max(second["oldest_ms"], round(age, 1))
    return seconds


def event_figures(outcome: Outcome, event: Event) -> dict:
    """A fault, and the oldest value that a read returned while it lasted or just after."""
    end_s = event.recovered_s or event.end_s or event.begin_s
    ages = stale_during(outcome, event.begin_s, end_s + AFTER_S)
    return {
        "fault": str(event.fault),
        "begin_s": round(event.begin_s - outcome.start_s, 2),
        "end_s": round((event.end_s or end_s) - outcome.start_s, 2),
        "recovered_s": round(end_s - outcome.start_s, 2),
        "stale_max_ms": round(ages[-1], 1) if ages else 0.0,
    }


def text(outcome: Outcome) -> str:
    """The same in some lines."""
    shown = figures(outcome)
    counts, staleness = shown["counts"], shown["staleness"]
    lines = [
        f"seed {shown['seed']}: {shown['seconds']} s, {len(outcome.events)} faults ({outcome.skipped} left out),"
        f" converged after {shown['converged_s']} s",
        "  faults: " + (", ".join(f"{number} {name}" for name, number in shown["faults"].items()) or "none"),
        "  " + ", ".join(f"{number} {name}" for name, number in counts.items()),
        f"  reads of old values: p50 {staleness['p50_ms']} ms, p99 {staleness['p99_ms']} ms, max"
        f" {staleness['max_ms']} ms; {staleness['reads']}",
        f"  {outcome.held} values in servers at the end; most memory of a process:"
        f" {max((p['resident_bytes'] for p in outcome.processes.values()), default=0) >> 20} MiB",
    ]
    worst = sorted(shown["schedule"], key=lambda event: -event["stale_max_ms"])[:5]
    lines += [f"  {event['fault']}: values up to {event['stale_max_ms']:.0f} ms old" for event in worst]
    if outcome.violations:
        lines.append(f"FOUND {sum(outcome.counts[kind] for kind in KINDS)}:")
        first = sorted(outcome.violations, key=lambda violation: violation.at_s)[:SHOWN]
        lines += [f"  {found.at_s:.2f} s: {found.kind}: {found.text}" for found in first]
    else:
        lines.append("  nothing found")
    return "\n".join(lines)


def oldest_by_bin(outcome: Outcome) -> list[tuple[float, float]]:
    """For each tenth of a second the age of the oldest value that a read returned, in milliseconds."""
    oldest = [0.0] * (int(outcome.seconds / BIN_S) + 1)
    for at, age in zip(outcome.samples.at_s, outcome.samples.stale_ms, strict=True):
        index = int((at - outcome.start_s) / BIN_S)
        if 0 <= index < len(oldest):
            oldest[index] = max(oldest[index], age)
    return [(index * BIN_S, age) for index, age in enumerate(oldest)]


def picture(outcome: Outcome) -> str:
    """Staleness over time, with the faults as bands."""
    from experiments.plots import lines

    bands = [
        (str(event.fault).split("@")[0], event.begin_s - outcome.start_s, event.end_s - outcome.start_s)
        for event in outcome.events
    ]
    return lines.svg(
        "Age of the oldest value that a read returned",
        "time (s)",
        "age (ms)",
        {"oldest": oldest_by_bin(outcome)},
        bands=bands,
    )
