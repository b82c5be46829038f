"""Row rules and rows that a foreign key changes: whether the log has them depends on the database."""

import json

from processes import Invalidator
from row_rule_clients import client_fixture, keys_until, operate, router_fixture  # noqa: F401 - fixtures

FAMILY = [
    "CREATE TABLE app.parents (id INT PRIMARY KEY)",
    """CREATE TABLE app.children (id INT PRIMARY KEY, parent INT,
       FOREIGN KEY (parent) REFERENCES app.parents (id) ON DELETE CASCADE ON UPDATE CASCADE)""",
    """CREATE TABLE app.guests (id INT PRIMARY KEY, host INT,
       FOREIGN KEY (host) REFERENCES app.parents (id) ON DELETE SET NULL ON UPDATE SET NULL)""",
    "INSERT INTO app.parents VALUES (1), (2)",
    "INSERT INTO app.children VALUES (10, 1), (20, 2)",
    "INSERT INTO app.guests VALUES (11, 1), (21, 2)",
]
RULES = """
[[rule]]
table = "app.children"
keys = ["child:{id}", "children_of:{parent}"]

[[rule]]
table = "app.guests"
keys = ["guest:{id}", "guests_of:{host}"]
"""
# The keys of what foreign keys do when a parent gets another number, and when one is deleted.
CHANGES = {
    "UPDATE app.parents SET id = 3 WHERE id = 1": {
        "child:10", "children_of:1", "children_of:3", "guest:11", "guests_of:1"
    },
    "DELETE FROM app.parents WHERE id = 2": {"child:20", "children_of:2", "guest:21", "guests_of:2"},
}  # fmt: skip
# MySQL 9.7 executes foreign keys in the server, unless innodb_native_foreign_keys is on, and not in InnoDB below it.
IS_LOGGED = {"mariadb": False, "mysql": True, "postgres": True}


def test_rows_that_a_foreign_key_changes_are_noticed_or_warned_of(request, client, router, tmp_path):
    is_logged = IS_LOGGED[request.node.callspec.params["client"]]
    for statement in FAMILY:
        client.run(statement)
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    client.prepare(rules)
    checked = operate("check-rules", "--rules", rules, "--database", client.url, "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    warnings = [problem for problem in json.loads(checked.stdout)["problems"] if "foreign key" in problem["why"]]
    assert len(warnings) == (0 if is_logged else 2), checked.stdout
    daemon = Invalidator(client.url, [router], tmp_path / "state", tmp_path, "--rules", str(rules))
    try:
        assert keys_until(router, client, "begun") == (set(), [])
        for number, (statement, keys) in enumerate(CHANGES.items()):
            client.run(statement)
            assert keys_until(router, client, f"mark:{number}")[0] == (keys if is_logged else set()), statement
    finally:
        daemon.stop()
