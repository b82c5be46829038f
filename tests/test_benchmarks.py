"""The verdicts of `make bench` (experiments): which rounds count, which ratio is judged, and the rows of the page."""

import pytest

from experiments import report
from experiments.cluster import proxy, router_floor, router_profile
from experiments.saturation import compare
from experiments.server import cost


def run_of(cpu_us: float, share: float) -> dict:
    """The figures of one run of the load generator."""
    return {
        "server_cpu_us_per_request": cpu_us,
        "server_cpu_share": share,
        "load_cpu_share": 1.0,
        "requests_per_s": 1e6 * share / cpu_us,
        "p99_us": 1_000.0,
        "misses": 0,
        "udp_lost": 0,
    }


def rounds_of(*rounds: tuple[tuple[float, float], ...]) -> list[dict[str, dict]]:
    """Rounds of ours, memcached's and twemproxy's costs and shares of the core, in this order."""
    names = ("lookaside", "memcached", "twemproxy")
    return [{name: run_of(*figures) for name, figures in zip(names, sides, strict=False)} for sides in rounds]


def test_a_round_is_judged_against_the_cheapest_of_the_others_in_that_round():
    full = 0.95
    rounds = rounds_of(
        ((10, full), (12, full), (20, full)),
        ((10, full), (30, full), (15, full)),
        ((10, full), (30, full), (11, full)),
    )
    comparison, counted = compare(rounds, "lookaside", ["memcached", "twemproxy"])
    assert counted == rounds
    assert (comparison["ratio"], comparison["ratio_min"], comparison["ratio_max"]) == (1.2, 1.1, 1.5)
    assert comparison["cheapest"] == {"twemproxy": 2, "memcached": 1}
    # Medians of 10, 30 and 15.
    assert comparison["ratio_of_medians"] == 1.5


@pytest.mark.parametrize(
    ("shares", "saturation", "counted"),
    [
        ([(0.95, 0.95, 0.95)] * 3 + [(0.5, 0.95, 0.95)] * 4, "all", 3),
        ([(0.95, 0.95, 0.95)] * 2 + [(0.5, 0.95, 0.95)] * 2 + [(0.95, 0.5, 0.95)], "theirs", 4),
        ([(0.95, 0.95, 0.95)] * 2 + [(0.95, 0.95, 0.5)] * 3, "neither", 5),
    ],
)
def test_only_rounds_of_the_strictest_class_that_enough_reach_count(shares, saturation, counted):
    rounds = rounds_of(*[tuple((10.0, share) for share in sides) for sides in shares])
    comparison, those = compare(rounds, "lookaside", ["memcached", "twemproxy"])
    assert (comparison["saturation"], comparison["rounds_counted"], len(those)) == (saturation, counted, counted)
    assert comparison["rounds"] == len(shares)


def cells(row: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def test_the_row_of_a_proxy_shows_what_was_judged():
    rounds = rounds_of(*[((10, 0.5), (12, 0.95), (20, 0.95))] * 3)
    scenario = proxy.Scenario("one", (), 1, 1.25)
    row = dict(zip(heading(report.PROXY), cells(report.proxy_row(proxy.summary(scenario, rounds))), strict=True))
    assert row["times cheaper than the best"] == "**1.20** (1.20 to 1.20; memcached 3)"
    assert row["of the medians"] == "1.20"
    assert row["aim"] == "1.25: **missed by 4%**"
    assert (row["ours, us a key"], row["aim for a key"]) == ("", "")
    assert row["saturated"] == "the other two; lower bound (3 of 3 rounds)"


@pytest.mark.parametrize(
    ("cpu_us", "found", "verdict"), [(14.4, "0.60", "0.6: met"), (18, "0.75", "0.6: **missed by 25%**")]
)
def test_the_row_of_a_proxy_shows_how_cheap_a_key_is(cpu_us, found, verdict):
    rounds = rounds_of(*[((cpu_us, 0.95), (50, 0.95), (40, 0.95))] * 3)
    scenario = proxy.Scenario("24 keys", (), 24, 2.0, 0.6)
    row = dict(zip(heading(report.PROXY), cells(report.proxy_row(proxy.summary(scenario, rounds))), strict=True))
    assert (row["ours, us a key"], row["aim for a key"]) == (found, verdict)


def test_the_row_of_a_server_shows_what_was_judged():
    rounds = rounds_of(*[((5, 0.95), (10, 0.95))] * 3)
    row = cells(report.cost_row(cost.summary(cost.Scenario("one", 32, (), bar=1.0, aim=2.5), rounds)))
    row = dict(zip(heading(report.COST), row, strict=True))
    assert (row["times cheaper"], row["of the medians"]) == ("**2.00** (2.00 to 2.00)", "2.00")
    assert (row["bar"], row["aim"]) == ("1: met", "2.5: **missed by 20%**")
    assert row["saturated"] == "both (3 of 3 rounds)"


def heading(text: str) -> list[str]:
    """The cells of the heading of the table at the end of a text."""
    return cells(text.strip().splitlines()[-2])


def test_the_memory_of_an_item_is_judged_for_ours_alone():
    result = {"items": 4_000_000, "key_bytes": 24, "value_bytes": 32, "memory_mib": 1024, "aim_bytes": 28}
    text = report.overhead_rows({**result, "overhead_bytes": {"memcached": 60.04, "lookaside": 29.4}})
    theirs, ours = (cells(line) for line in text.strip().splitlines()[-2:])
    assert theirs == ["memcached", "116.0", "60.0", ""]
    assert ours == ["lookaside", "85.4", "29.4", "28: **missed by 5%**"]


def floor_results(ours: tuple[float, float], bare: tuple[float, float]) -> list[dict]:
    """The floor of a scenario with an aim of 1.25, where memcached's proxy takes 10 us."""
    costs = {"lookaside": ours, "memcached": (10, 0.95), **dict.fromkeys(router_floor.BARE_NAMES, bare)}
    rounds = [{name: run_of(*figures) for name, figures in costs.items()}] * 3
    scenario = proxy.Scenario("one", (), 1, 1.25)
    return [router_floor.summary(scenario, name, rounds) for name in router_floor.NAMES]


def test_the_floor_shows_whether_a_router_could_meet_the_aim():
    page = router_floor.page(floor_results(ours=(9, 0.95), bare=(7.5, 0.5)), {"kernel": "one"})
    assert "| one | bare epoll | 7.50 | **1.33** (1.33 to 1.33) | 1.33 | 1.25: met | 0.50 | memcached; lower" in page
    assert "| one | lookaside | 9.00 | **1.11** (1.11 to 1.11) | 1.11 | 1.25: **missed** | 0.95 | both" in page
    assert "That leaves 0.50 us" in page and "* kernel: one" in page
    missed = router_floor.page(floor_results(ours=(9, 0.95), bare=(8.5, 0.5)), {})
    assert "No proxy here meets the aim, not even one that only moves" in missed


def test_a_sample_of_a_profile_is_counted_by_its_system_call_or_its_module():
    router = "(/target/release/lookaside-router)"
    sending = (
        "ffff tcp_ack ([kernel.kallsyms])\n ffff __x64_sys_sendto ([kernel.kallsyms])\n 55 __send (/lib/libc.so.6)"
    )
    waiting = "ffff schedule ([kernel.kallsyms])\n ffff do_epoll_wait ([kernel.kallsyms])"
    routing = f"55 lookaside_routing::hash::ch3::ch3 {router}\n 55 lookaside_router::proxy::Proxy::admit {router}"
    stacks = [sending, waiting, routing, f"55 mi_free {router}"]
    found = router_profile.shares(stacks)
    expected = ["kernel: `send`", "kernel: `epoll_wait`", "routing and hashing", "allocation"]
    assert found == dict.fromkeys(expected, 0.25)
    text = router_profile.table({"one": {"cpu_us": 9.0, "cpu_share": 0.5, "shares": found}})
    assert "| kernel: `send` | 25% |" in text and "| other | 0% |" in text and "| core used | 0.50 |" in text
