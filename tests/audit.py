"""Audits of users that clusters cache, and the database with their rows."""

import contextlib
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PROGRAMS, Process, answers, eventually

QUERIES = """
[[query]]
key = "user:{id}"
sql = "SELECT name FROM users WHERE id = {id}"
list = "SELECT id FROM users"

[[query]]
key = "page:{id}"
sql = "SELECT id, name, visits FROM users WHERE id = {id}"
value = "json"
list = "SELECT id FROM users"
"""
ROWS = [(1, "ada"), (2, "grace"), (3, "o'hara \\ co")]
CREATE = "CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(40), visits INT)"


@pytest.fixture(name="database")
def database_fixture(tmp_path):
    """A SQLite database with users."""
    connection = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    connection.execute(CREATE)
    connection.executemany("INSERT INTO users VALUES (?, ?, 7)", ROWS)
    yield connection
    connection.close()


class Audit:
    """Runs of the command for one database and cluster."""

    def __init__(self, url: str, folder: Path, *clusters) -> None:
        self.folder = folder
        self.write_queries(QUERIES)
        options = [f"--cluster={cluster.name}=127.0.0.1:{cluster.port}" for cluster in clusters]
        self.command = [
            PROGRAMS / "lookaside", "audit", "--database", url, "--queries", folder / "queries.toml", *options,
            "--once", "--json", "--recheck-ms", "300", "--rate", "1000",
        ]  # fmt: skip

    def write_queries(self, text: str) -> None:
        """Replaces the queries of the runs from now on."""
        (self.folder / "queries.toml").write_text(text)

    def execute(self, *arguments: str) -> subprocess.CompletedProcess:
        """One run, whatever its exit code."""
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=170)

    def run(self, *arguments: str, code: int = 0) -> tuple[set[tuple[str, str, str]], dict[str, int]]:
        """What is wrong, as (found, cluster, key), and the counts that are not 0."""
        done = self.execute(*arguments)
        assert done.returncode == code, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        counts = {name: count for name, count in lines.pop()["round"].items() if count}
        return {(line["found"], line["cluster"], line["key"]) for line in lines}, counts

    @contextlib.contextmanager
    def repeated(self, *arguments: str) -> Iterator["ContinuousAudit"]:
        """An audit without `--once`, until the end of the block."""
        running = ContinuousAudit(self, *arguments)
        try:
            yield running
        finally:
            running.stop()


def sqlite_audit(folder: Path, *clusters) -> Audit:
    """An audit beside the database of the fixture."""
    return Audit(f"sqlite://{folder}/app.db", folder, *clusters)


class ContinuousAudit(Process):
    """An audit without `--once`."""

    def __init__(self, audit: Audit, *arguments: str) -> None:
        command = [word for word in audit.command if word != "--once"]
        super().__init__("audit", [*command, *arguments], audit.folder)

    def lines(self) -> list[dict]:
        """Its output, but for what it says about failures."""
        whole = self.log().rsplit("\n", 1)[0].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    def found(self) -> set[tuple[str, str, str]]:
        """What was wrong, as (found, cluster, key)."""
        return {(line["found"], line["cluster"], line["key"]) for line in self.lines() if "key" in line}

    def wait_round(self, condition, what: str) -> None:
        """Waits until the counts of a round that ends from now on meet the condition."""
        before = len(self.lines())

        def is_met() -> bool:
            return any(condition(line["round"]) for line in self.lines()[before:] if "round" in line)

        eventually(is_met, what, 60)


def fill_users(cluster) -> None:
    """Caches the users as an application does."""
    values = {f"user:{id}": name for id, name in ROWS}
    values |= {f"page:{id}": json.dumps({"id": id, "name": name, "visits": 7}) for id, name in ROWS}
    assert cluster.client().set_many(values) == []


def restart_router(cluster, configuration: dict) -> None:
    """Starts the cluster's router with another configuration; it knows nothing of the one before."""
    cluster.router.stop()
    cluster.configuration_path.write_text(json.dumps(configuration))
    cluster.router.start()
    cluster.router.wait_ready(lambda: answers(cluster.port))
