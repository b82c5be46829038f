"""Row rules where a foreign key changes the rows: which databases have these rows in their log, and that `check-rules`
warns of those that have not.
"""

import json
from pathlib import Path

from processes import Invalidator
from replicated import MysqlServer
from row_rule_clients import MysqlClient, client_fixture, keys_until, operate, router_fixture  # noqa: F401 - fixtures
from tools import need

TABLES = [
    "CREATE TABLE app.shelves (id INT PRIMARY KEY)",
    """CREATE TABLE app.books (id INT PRIMARY KEY, shelf INT,
      FOREIGN KEY (shelf) REFERENCES app.shelves (id) ON DELETE CASCADE ON UPDATE CASCADE)""",
    """CREATE TABLE app.notes (id INT PRIMARY KEY, book INT,
      FOREIGN KEY (book) REFERENCES app.books (id) ON DELETE CASCADE ON UPDATE SET NULL)""",
    """CREATE TABLE app.labels (id INT PRIMARY KEY, shelf INT,
      FOREIGN KEY (shelf) REFERENCES app.shelves (id) ON DELETE SET NULL ON UPDATE CASCADE)""",
]
RULES = """
[[rule]]
table = "app.shelves"
keys = ["shelf:{id}"]
[[rule]]
table = "app.books"
keys = ["book:{id}", "books_of:{shelf}"]
[[rule]]
table = "app.notes"
keys = ["note:{id}", "notes_of:{book}"]
[[rule]]
table = "app.labels"
keys = ["label:{id}", "labels_of:{shelf}"]
"""
REFERENCING = {"app.books", "app.notes", "app.labels"}
# Statements, the keys of the rows that they change, and those of the rows that foreign keys change then.
STEPS = [
    ("INSERT INTO app.shelves VALUES (1)", {"shelf:1"}, set()),
    ("INSERT INTO app.books VALUES (10, 1)", {"book:10", "books_of:1"}, set()),
    ("INSERT INTO app.notes VALUES (20, 10)", {"note:20", "notes_of:10"}, set()),
    ("INSERT INTO app.labels VALUES (30, 1)", {"label:30", "labels_of:1"}, set()),
    (
        "UPDATE app.shelves SET id = 2",
        {"shelf:1", "shelf:2"},
        {"book:10", "books_of:1", "books_of:2", "label:30", "labels_of:1", "labels_of:2"},
    ),
    ("UPDATE app.books SET id = 11", {"book:10", "book:11", "books_of:2"}, {"note:20", "notes_of:10"}),
    # The row is found only if the foreign key has set it to NULL.
    ("UPDATE app.notes SET book = 11 WHERE book IS NULL", {"note:20", "notes_of:11"}, set()),
    (
        "DELETE FROM app.shelves",
        {"shelf:2"},
        {"book:11", "books_of:2", "note:20", "notes_of:11", "label:30", "labels_of:2"},
    ),
    ("DELETE FROM app.labels WHERE shelf IS NULL", {"label:30"}, set()),
    # The row would be there already if the foreign key had not deleted it.
    ("INSERT INTO app.books VALUES (11, NULL)", {"book:11"}, set()),
]


def check_foreign_keys(client, router, folder: Path) -> None:
    """Compares what is deleted, and what `check-rules` warns of, with what the client says of its database."""
    for table in TABLES:
        client.run(table)
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    client.prepare(rules)
    checked = operate("check-rules", "--rules", rules, "--database", client.url, "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    daemon = Invalidator(client.url, [router], folder / "state", folder, "--rules", str(rules))
    try:
        assert keys_until(router, client, "begun") == (set(), [])
        for number, (statement, changed, changed_by_keys) in enumerate(STEPS):
            client.run(statement)
            expected = changed | changed_by_keys if client.logs_cascades else changed
            assert keys_until(router, client, f"mark:{number}") == (expected, []), statement
    finally:
        daemon.stop()
    problems = json.loads(checked.stdout)["problems"]
    warned = {problem["table"]: problem["why"] for problem in problems if "foreign key" in problem["why"]}
    assert set(warned) == (set() if client.logs_cascades else REFERENCING), problems
    assert all("not in the log" in why for why in warned.values()), warned


def test_rows_that_a_foreign_key_changes_are_in_the_log_of_mysql_and_postgres(client, router, tmp_path):
    """MariaDB's InnoDB changes them by itself: their keys are not deleted."""
    check_foreign_keys(client, router, tmp_path)


class NativeMysqlServer(MysqlServer):
    """MySQL whose foreign keys InnoDB executes, as in its older versions."""

    arguments = (*MysqlServer.arguments, "--innodb-native-foreign-keys=ON")


class NativeMysqlClient(MysqlClient):
    """Its client."""

    logs_cascades = False


def test_rows_that_a_foreign_key_of_innodb_changes_are_not_in_the_log_of_mysql(router, tmp_path):
    need("mysql")
    server = NativeMysqlServer(tmp_path)
    try:
        server.run("CREATE DATABASE app", schema=None)
        client = NativeMysqlClient(server, server.url())
        try:
            check_foreign_keys(client, router, tmp_path)
        finally:
            client.close()
    finally:
        server.stop()
