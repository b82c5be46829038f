"""Compares the keys that an ORM names with those of the invalidator's row rules, for the same row."""

import subprocess
from pathlib import Path

from cached_keys import fill, gone
from processes import PROGRAMS, Cluster, Invalidator, eventually, stats


def set_up_rules(database, folder: Path, table: str, columns: list[str]) -> Path:
    """A rule file with a key `rule:COLUMN:VALUE` for each column of a table; the ORM has `orm:COLUMN:VALUE`."""
    schema = "public" if database.kind == "postgres" else "app"
    rules = folder / "rules.toml"
    keys = ", ".join(f"'rule:{name}:{{{name}}}'" for name in columns)
    rules.write_text(f"[[rule]]\ntable = '{schema}.{table}'\nkeys = [{keys}]\n")
    if database.kind == "postgres":
        command = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", database.source, "--rules", rules]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return rules


def delete_by_rule(daemon: Invalidator, cluster: Cluster, named: set[str], delete_row) -> None:
    """Caches a value for each key that was named, with the rule's prefix, and waits until the deletion of the row has
    deleted all of them."""
    # The insert named the keys in both ways.
    eventually(lambda: int(stats(daemon.port)["invalidations_total"]) >= 2 * len(named), "the insert has been applied")
    # As bytes: the client refuses text beyond ASCII.
    by_rule = {key.replace("orm:", "rule:", 1).encode() for key in named}
    fill([cluster], by_rule)
    delete_row()
    gone([cluster], by_rule)
