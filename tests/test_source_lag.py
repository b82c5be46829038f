"""How far a cluster is behind the log, in seconds, transactions and bytes, with each database."""

import pytest
from invalidator_pair import ROWS, Writer
from processes import answers, eventually, stats

pytestmark = pytest.mark.timeout(600)

# PostgreSQL's log does not number transactions; its server gives ids to them, and to a few of its own.
COUNTS = {"postgres": "source_lag_transaction_ids"}
OWN_TRANSACTIONS_MAX = 100


def test_lag_in_all_units(pair_region):
    """One of two clusters does not apply deletes: its position stays, and the other's is at the end."""
    count = COUNTS.get(pair_region.database.kind, "source_lag_transactions")
    pair_region.arguments = ()
    member = pair_region.add("a")
    eventually(member.is_active, f"it runs: {member.log()}")
    writer = pair_region.begin()

    def lag(cluster: str, unit: str) -> int:
        shown = stats(member.port)[f"cluster:{cluster}:{unit}"]
        return -1 if shown == "-" else int(shown)

    def is_at_end(cluster: str) -> bool:
        return all(lag(cluster, unit) == 0 for unit in ("source_lag_ms", count, "source_lag_bytes"))

    def commit(writer: Writer, share: float) -> None:
        writer.allowed = share
        eventually(lambda: writer.commits >= share * ROWS, "they are committed", 120)

    commit(writer, 0.3)
    eventually(lambda: is_at_end("one") and is_at_end("two"), "both have all of the log", 60)
    two = pair_region.clusters[1]
    two.router.kill()
    commit(writer, 0.6)
    commits = round(0.3 * ROWS)
    eventually(lambda: lag("two", count) >= commits and is_at_end("one"), f"it is behind: {stats(member.port)}", 60)
    most = commits + (OWN_TRANSACTIONS_MAX if pair_region.database.kind == "postgres" else 0)
    assert commits <= lag("two", count) <= most
    # The least that a commit needs in any log.
    assert lag("two", "source_lag_bytes") >= 50 * commits
    eventually(lambda: lag("two", "source_lag_ms") > 0, "it has been behind since a look-up", 60)
    two.router.start()
    two.router.wait_ready(lambda: answers(two.port))
    eventually(lambda: is_at_end("two"), "it has caught up", 60)
    failures = [int(value) for name, value in stats(member.port).items() if name.startswith("source_lookup_failures_")]
    assert failures and not any(failures), stats(member.port)
    pair_region.finish()
