"""The page of `make staleness`: a run writes the part of its database, and keeps those of the others."""

import pytest
from chaos.databases import DATABASES, sequence_of

from experiments.region import staleness
from experiments.region.staleness import AFTER_END, DRAWN, SCENARIOS, THEN, page, sections_of

FACTS = {"database": "of a test", "build": "none"}


def rows(max_ms: float) -> list[dict]:
    """Figures of a run: what was old longest, in every scenario."""
    times = {"p50_ms": 0.0, "p99_ms": 1.0, "max_ms": max_ms, AFTER_END: 0.0}
    reads = {"reads": 1000, "old reads": 2, "failed reads": 0, "longest page_ms": 5.0}
    return [{"fault": scenario.name, "commits": 10, **times, **reads} for scenario in SCENARIOS]


def test_a_run_writes_the_part_of_its_database_and_keeps_the_others():
    first = page("", "mysql", rows(12.0), FACTS)
    assert list(sections_of(first)) == ["MySQL"]
    second = page(first, DRAWN, rows(34.0), FACTS)
    assert list(sections_of(second)) == ["MariaDB", "MySQL", THEN]
    third = page(second, "postgres", rows(1234.0), FACTS)
    assert list(sections_of(third)) == ["MariaDB", "MySQL", "PostgreSQL", THEN]
    last = page(third, "mysql", rows(56.0), FACTS)
    kept = [title for title in sections_of(third) if sections_of(last)[title] == sections_of(third)[title]]
    assert kept == ["MariaDB", "PostgreSQL", THEN]
    assert "| 56 |" in sections_of(last)["MySQL"] and "| 12 |" not in last
    # The former figures are compared with MariaDB's.
    assert "| 34 |" in sections_of(last)[THEN] and "pictures/staleness.svg" in sections_of(last)["MariaDB"]
    assert "Nothing is above 1,000 ms." in sections_of(last)["MySQL"]
    assert sections_of(last)["PostgreSQL"].count("the database hangs") == 2, "a row, and what is above the aim"
    assert page(last, "mysql", rows(56.0), FACTS) == last


def test_the_page_has_a_part_for_each_database():
    sections = sections_of(staleness.REPORT.read_text())
    assert list(sections) == [*(database.title for database in DATABASES.values()), THEN]
    for database in DATABASES.values():
        assert all(f"\n| {scenario.name} | " in sections[database.title] for scenario in SCENARIOS)


@pytest.mark.parametrize(
    "earlier, later",
    [
        ("0-1-99", "0-1-100"),
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-10"),
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:1", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-2"),
        ("0/FFFFFFF0", "1/0"),
        ("16/B374D848@1", "16/B374D849@2"),
        ("-", "0-1-1"),
    ],
)
def test_positions_of_each_database_are_compared(earlier, later):
    assert sequence_of(earlier) < sequence_of(later)
