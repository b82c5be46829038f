"""The figures of `make warmup`, its pictures, and its page."""

from processes import ROOT

from experiments.plots import lines
from experiments.region.cold_start import (
    COLD_RATE,
    DELAY_S,
    END_AFTER_S,
    HOLD_OFF_MS,
    KEYS,
    LATE_S,
    SERVERS,
    WARM_RATE,
    WITH,
    WITHOUT,
    WRITES,
    ZIPF,
)

STEADY_S, MEAN_S = 20, 5

PAGE = ROOT / "docs" / "measurements" / "warmup.md"
PICTURES = ROOT / "docs" / "measurements" / "pictures"


def hit_rates(run: dict) -> list[float]:
    """The share of reads that were answered without the database, in each second."""
    return [1 - missed / max(1, reads) for reads, missed in zip(run["reads"], run["database"], strict=True)]


def within_a_point_s(rates: list[float], steady: float) -> int | None:
    """The second from which on every mean of MEAN_S seconds is within a point of `steady`."""
    means = [sum(rates[at : at + MEAN_S]) / MEAN_S for at in range(len(rates) - MEAN_S + 1)]
    below = [at for at, mean in enumerate(means) if mean < steady - 0.01]
    first = below[-1] + 1 if below else 0
    return first if first < len(means) else None


def figures(runs: dict[str, dict]) -> dict:
    """The reported figures."""
    steady = sum(hit_rates(runs[WITH])[-STEADY_S:]) / STEADY_S
    shown = {}
    for name, run in runs.items():
        rates, ended_s = hit_rates(run), run["ended_s"]
        shown[name] = {
            "seconds": len(rates),
            "writes": run["writes"],
            "database reads of the first 10 s": sum(run["database"][:10]),
            "most database reads in a second": max(run["database"]),
            "database reads of the first 60 s": sum(run["database"][:60]) if len(rates) >= 60 else None,
            "hit rate of the first 10 s": sum(rates[:10]) / 10,
            "within a point of the settled hit rate after": within_a_point_s(rates, steady),
            "reads": sum(run["reads"]),
            "stale reads": sum(run["stale"]),
            "stale reads in the warm cluster": run["stale in warm"],
            "keys left stale": run["left stale"],
            "warm-up ended after": ended_s,
            "reads of the warm cluster after that": None if ended_s is None else sum(run["to warm"][ended_s:]),
            "behind its rate at the end by": max(0.0, round(run["late_s"], 1)),
        }
    return {"settled hit rate": steady, "runs": shown}


def draw(runs: dict[str, dict]) -> None:
    """Database reads, hit rate and reads of the warm cluster over time."""
    across = "time since the empty cluster was given the load (s)"
    both = {name: runs[name] for name in (WITHOUT, WITH)}
    curves = {
        "warmup_database_reads": (
            "Reads of the database",
            "reads per second",
            {name: run["database"] for name, run in both.items()},
        ),
        "warmup_hit_rate": (
            "Reads that were answered without the database",
            "share of reads (%)",
            {name: [100 * rate for rate in hit_rates(run)] for name, run in both.items()},
        ),
        "warmup_warm_reads": (
            "Reads that the cold cluster's router sent to the warm cluster",
            "reads per second",
            {WITH: runs[WITH]["to warm"]},
        ),
    }
    PICTURES.mkdir(exist_ok=True)
    for name, (title, up, values) in curves.items():
        points = {curve: list(enumerate(drawn)) for curve, drawn in values.items()}
        (PICTURES / f"{name}.svg").write_text(lines.svg(title, across, up, points))


TEXT = """# A cold cluster, with warm-up and without

`make warmup` measures this and writes this page (§4.3 of "Scaling Memcache at Facebook"):
an empty cluster of {servers} servers suddenly gets {rate} reads a second of {keys} Zipf-distributed keys
(exponent {zipf}), from applications that read through the cache under leases, with MariaDB as the database. A
second cluster has all keys cached, and {warm_rate} reads a second of its own. A writer commits {writes} times a
second; its deletes reach the cold cluster at once and the warm one {delay} s later.

| | without warm-up | with warm-up |
|---|---|---|
{rows}

The settled hit rate ({steady:.1%}) is that of the last {steady_s} s with warm-up, which had ended by then;
the writer's deletes cause the remaining misses. A hit is a read that the database did not serve.
The warm-up ended by itself after
{ended} s, as the router's log says, and the router sent {after} reads to the warm cluster from then on (`end_after` was
{end_after} s here; the default of 300 s is longer than this run).

![reads of the database](pictures/warmup_database_reads.svg)
![hit rate](pictures/warmup_hit_rate.svg)
![reads of the warm cluster](pictures/warmup_warm_reads.svg)

## Was anything stale?

Every value carries the version of its row. A read is stale if it begins after a delete was acknowledged in its cluster
and still brings an older version. A key is left stale if the cold cluster has an older version than the database when
all is over: nothing will delete it any more.

| run | reads | writes | stale reads | keys left stale |
|---|---|---|---|---|
{stale}

While an invalidation is on its way to the warm cluster, the old value may be copied from there. The hold-off
refuses it: {hold_off:g} s are enough for an invalidation that takes {delay} s. Without one the old value comes
back and stays. The paper considers an invalidation that takes longer than the hold-off ({late:g} s) rare and
accepts it; here every write causes one.

## What the paper's figure compares to

The paper: back to full capacity "in a few hours instead of a few days". How long a cluster stays cold depends on its
keys over its reads a second; both are small here, so that seconds stand for hours. The shape is comparable: without
warm-up the database serves each key once before the hit rate settles; with it the warm cluster does. Not comparable:
the warm cluster here is on the same machine, neither far away nor busy, and has every key, so the hit rate settles at
once.

{facts}
"""


def seconds_or_not(seconds: int | None) -> str:
    """In words."""
    return "not in this run" if seconds is None else f"{seconds} s"


def report(shown: dict, facts: dict[str, str]) -> str:
    """docs/measurements/warmup.md."""
    runs = shown["runs"]
    compared = (
        ("reads of the database, first 10 s", lambda run: f"{run['database reads of the first 10 s']:,}"),
        ("reads of the database, first 60 s", lambda run: f"{run['database reads of the first 60 s']:,}"),
        ("most in one second", lambda run: f"{run['most database reads in a second']:,}"),
        ("hit rate, first 10 s", lambda run: f"{run['hit rate of the first 10 s']:.1%}"),
        (
            "hit rate within a point of the settled one after",
            lambda run: seconds_or_not(run["within a point of the settled hit rate after"]),
        ),
    )
    rows = [f"| {what} | {report(runs[WITHOUT])} | {report(runs[WITH])} |" for what, report in compared]
    stale = [
        f"| {name} | {run['reads']:,} | {run['writes']:,} | {run['stale reads']:,} | {run['keys left stale']:,} |"
        for name, run in runs.items()
    ]
    with_warm_up = runs[WITH]
    return TEXT.format(
        servers=SERVERS,
        rate=f"{COLD_RATE:,}",
        keys=f"{KEYS:,}",
        zipf=ZIPF,
        warm_rate=WARM_RATE,
        writes=WRITES,
        delay=DELAY_S,
        late=LATE_S,
        hold_off=HOLD_OFF_MS / 1000,
        rows="\n".join(rows),
        stale="\n".join(stale),
        steady=shown["settled hit rate"],
        steady_s=STEADY_S,
        ended=with_warm_up["warm-up ended after"],
        after=with_warm_up["reads of the warm cluster after that"],
        end_after=END_AFTER_S,
        facts="\n".join(f"* {name}: {fact}" for name, fact in facts.items()),
    )
