"""The pictures of the measurements (experiments/plots): readable on any page, the same figures give the same file."""

import xml.etree.ElementTree as ElementTree

import pytest

from experiments.plots import bars, cdf, delete_curves, dots, figure, lines, panels

RATES = {"memcached": [(1, 20, 15, 30), (10, 40, 35, 45)], "lookaside": [(1, 60, 50, 70), (10, 80, 80, 80)]}
MISSES = {"16 MiB": {"memcached 1.6.45": 0.2, "ours": 0.1, bars.FLOOR: 0.05}}
LATENCIES = {"one cluster": [1.0 + n for n in range(20)], "both clusters": [2.0 + n for n in range(20)]}
RECOVERIES = {"router dies": {"MariaDB": (0.2, 0.1, 3.0), "MySQL": (0.3, 0.3, 0.3)}, "slot": {"MySQL": (2, 1, 3)}}
BANDS = [("router hangs", 2.0, 4.0), ("server dies", 5.0, 6.0)]


def draw_lines() -> str:
    return lines.svg("Rates", "connections", "throughput (1,000 requests/s)", RATES, is_logarithmic=True)


def draw_bars() -> str:
    return bars.svg("Misses", "memory", "share of gets that miss", MISSES)


def draw_cdf() -> str:
    return cdf.svg("Latency", "time (ms)", "commits that took longer", LATENCIES, bar=50)


def draw_panels() -> str:
    panel = panels.Panel("faults", 0, 10, BANDS)
    return panels.svg("Age", "time (s)", "age (ms)", [(1, 0), (3, 500)], [panel], (1, 10, 100, 1_000), ("aim", 100))


def draw_delete_curves() -> str:
    curves = {"master region": [(1, 1e-4), (60, 0.0)], "replica region": [(1, 1e-3), (60, 1e-5)]}
    return delete_curves.svg("Deletes", curves, {"paper": [(1, 1e-4), (3_600, 1e-5)]})


def draw_dots() -> str:
    return dots.svg("Recoveries", "time (s)", RECOVERIES)


DRAWN = {
    draw_lines: {"Rates", "connections", "throughput (1,000 requests/s)", "memcached", "lookaside"},
    draw_bars: {"Misses", "memory", "share of gets that miss", "memcached 1.6.45", "ours", "floor", "16 MiB"},
    draw_dots: {"Recoveries", "time (s)", "router dies", "slot", "MariaDB", "MySQL"},
    draw_cdf: {"Latency", "time (ms)", "commits that took longer", "one cluster", "1 in 10", "bar at p99: 50"},
    draw_delete_curves: {"Deletes", "master region", "replica region", "paper", "1 min", "1 h", "0.01 %", "none"},
    draw_panels: {"Age", "time (s)", "age (ms)", "faults", "router hangs", "aim", "1,000"},
}


def texts(svg: str) -> set[str]:
    """The texts of a picture."""
    words = (element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text"))
    return {word for word in words if word}


@pytest.mark.parametrize("draw", DRAWN)
def test_a_picture_has_its_words_and_is_the_same_again(draw):
    assert DRAWN[draw] <= texts(draw())
    assert draw() == draw()


@pytest.mark.parametrize("draw", DRAWN)
def test_a_picture_can_be_read_on_a_light_and_on_a_dark_page(draw):
    drawn = draw().lower()
    for colour in ("#ffffff", "#000000", "white", "black"):
        assert f"fill: {colour}" not in drawn
        assert f"stroke: {colour}" not in drawn
    assert f"fill: {figure.GREY}" in drawn


def test_a_program_has_one_colour_in_every_picture():
    ours, theirs = figure.colours(["lookaside", "memcached"]).values()
    assert list(figure.colours(["twemproxy", "memcached 1.6.45", "ours"]).values())[1:] == [theirs, ours]
    assert len({*figure.colours(["p50", "lookaside", "p95", "memcached"]).values()}) == 4
    for drawn in (draw_lines(), draw_bars()):
        assert ours in drawn
        assert theirs in drawn


def test_points_are_marked_and_rounds_have_their_range():
    without_range = {name: [point[:2] for point in points] for name, points in RATES.items()}
    plain = lines.svg("Rates", "connections", "throughput (1,000 requests/s)", without_range)
    # The legend has a mark for each curve, too.
    assert plain.count("<use ") < draw_lines().count("<use ")
    assert "LineCollection" in draw_lines()
    assert "LineCollection" not in plain


def test_a_band_names_its_span():
    drawn = lines.svg("Age", "time (s)", "age (ms)", {"oldest": [(0, 1), (10, 2)]}, bands=BANDS)
    assert {"router hangs", "server dies"} <= texts(drawn)
    assert figure.MARK_COLOUR in drawn


def test_a_row_without_a_name_has_no_dot_of_it():
    without = {"router dies": RECOVERIES["router dies"], "slot": {}}
    # The legend has a dot for each name, too.
    assert draw_dots().count("<use ") - dots.svg("Recoveries", "time (s)", without).count("<use ") == 1
