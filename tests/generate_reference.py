"""Writes docs/reference/{flags,metrics,statistics}.md from what the built programs print.

Flags come from `--help`; statistics from `stats` of a running server, router and invalidator; metrics and their
meanings from `/metrics`. The meaning of a statistic is in `reference_meanings.py`, or is the HELP text of the metric
of the same name. Values are not shown.

    make reference                              builds the programs and writes the pages
    LOOKASIDE_PROGRAMS=target/release python tests/generate_reference.py

The exit code is 1 if a statistic has no meaning. `tests/test_reference.py` compares the names on the committed pages
with what the programs print.
"""

import sys
import tempfile
from pathlib import Path

from observed_programs import Observed, observe
from processes import ROOT
from reference_flags import flags
from reference_meanings import meaning_of
from reference_pages import Page, Table

REFERENCE = ROOT / "docs" / "reference"


def statistics(seen: Observed) -> Page:
    """The page of statistics."""
    helps = {name: meaning for metrics in seen.metrics.values() for name, _, _, meaning in metrics}
    tables = [
        Table(group, ("name", "meaning"), [(name, meaning_of(group, name, helps)) for name in names])
        for group, names in seen.stats.items()
    ]
    head = (
        "What `stats` and its groups print. Some lines appear only with an option or in a state. Further groups:"
        " the server's `stats detail dump` and `stats cachedump`"
        " ([metrics](../operating/metrics.md#inspecting-one-server));"
        " the router's `all` (as `stats`), `cmd-in`, `cmd-out`, `cmd-error` and `count` (parts of `detailed`) and"
        " `servers` and"
        " `suspect_servers` (a line for each server, in mcrouter's format)."
    )
    return Page("statistics", "Statistics", head, tables)


def metrics(seen: Observed) -> Page:
    """The page of metrics."""
    columns = ("metric", "type", "labels", "meaning")
    tables = [Table(program, columns, rows) for program, rows in seen.metrics.items()]
    head = "What `GET /metrics` prints with `--metrics-address`; [metrics](../operating/metrics.md) explains it."
    return Page("metrics", "Metrics", head, tables)


def pages(folder: Path) -> list[Page]:
    """All pages, from the programs that are built."""
    seen = observe(folder)
    return [flags(), metrics(seen), statistics(seen)]


def without_meaning(page: Page) -> list[str]:
    """The names on a page whose meaning is unknown."""
    return [f"{table.heading}: {row[0]}" for table in page.tables for row in table.rows if not row[-1]]


def main() -> int:
    """Writes the pages."""
    REFERENCE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        written = pages(Path(folder))
    unknown = []
    for page in written:
        (REFERENCE / f"{page.name}.md").write_text(page.markdown())
        unknown += without_meaning(page)
    for name in unknown:
        print(f"no meaning: {name} (add it to reference_meanings.py)", file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
