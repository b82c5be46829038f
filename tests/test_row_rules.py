"""Row rules: random schemas and statements by a plain client against a model of the keys; the operator's commands; the
reload of a rule file.

LOOKASIDE_SOAK=1 runs hundreds of seeds for each database, and fifty for PostgreSQL.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from processes import PROGRAMS, Invalidator, eventually, stats
from row_model import COMMON_KINDS, MARIADB, MYSQL, POSTGRES, Session, random_step, random_table
from row_rule_clients import (
    RULE,
    check_step,
    client_fixture,  # noqa: F401 - a fixture
    keys_until,
    operate,
    router_fixture,  # noqa: F401 - a fixture
    start_with_rules,
    users_fixture,  # noqa: F401 - a fixture
)

SOAK = bool(os.environ.get("LOOKASIDE_SOAK"))
STATEMENTS = 60
# With PostgreSQL a run waits for looks at the catalogue, two seconds apart. Of even seeds all databases run the same.
SEEDS = {
    "mariadb": range(200 if SOAK else 10),
    "mysql": range(200 if SOAK else 10),
    "postgres": range(50) if SOAK else [0, 1, 2, 3, 4, 6],
}
WITH_BINLOG = pytest.mark.parametrize("client", ["mariadb", "mysql"], indirect=True)


def begin_session(seed: int, sql) -> Session:
    """Three random tables. Every other seed has the kinds of columns that all databases have."""
    session = Session(seed, [], sql)
    kinds = COMMON_KINDS if seed % 2 == 0 else sorted(sql.types)
    session.tables = [random_table(session.random, f"app.t{number}", kinds) for number in range(3)]
    return session


@pytest.mark.parametrize(
    ("client", "seed"),
    [(database, seed) for database, seeds in SEEDS.items() for seed in seeds],
    indirect=["client"],
)
def test_random_statements_delete_the_keys_of_the_model(client, router, tmp_path, seed):
    session = begin_session(seed, client.sql)
    client.vary_log(seed)
    for table in session.tables:
        client.create(table)
    daemon = start_with_rules(router, client, tmp_path, session.tables)
    try:
        for number in range(STATEMENTS):
            step = random_step(session)
            for statement in step.statements:
                client.run(statement)
            check_step(router, client, f"mark:{number}", step)
        eventually(lambda: stats(daemon.port)["cluster:one:pending_keys"] == "0", "all is acknowledged")
    finally:
        daemon.stop()


@pytest.mark.parametrize("seed", range(0, 8, 2))
def test_the_model_expects_the_same_keys_of_every_database(seed):
    """So if each database gives the keys of the model, all give the same."""
    expected = []
    for sql in (MARIADB, MYSQL, POSTGRES):
        session = begin_session(seed, sql)
        steps = [random_step(session) for _ in range(STATEMENTS)]
        expected.append([(step.keys, step.flushed) for step in steps])
    assert expected[0] == expected[1] == expected[2]
    assert sum(len(keys) for keys, _ in expected[0]) > STATEMENTS


def test_the_random_rules_flush_the_cluster_one_pool_and_several_pools():
    sessions = [begin_session(seed, POSTGRES) for seed in SEEDS["postgres"]]
    flushes = [table.flushes() for session in sessions for table in session.tables]
    assert [""] in flushes
    assert {len(prefixes) for prefixes in flushes if "" not in prefixes} >= {1, 2}


@pytest.mark.parametrize("sql", [MARIADB, MYSQL, POSTGRES], ids=lambda sql: sql.name)
def test_the_random_rules_have_keys_of_columns_of_every_kind(sql):
    tables = [table for seed in SEEDS[sql.name] for table in begin_session(seed, sql).tables]
    kinds = {table.columns[name] for table in tables for name in table.columns_of_keys()}
    # PostgreSQL has fewer seeds.
    assert kinds >= ({"latin1", "folded", "text", "uuid"} if sql is POSTGRES else set(sql.types))


def test_a_changed_file_is_loaded_and_a_bad_one_refused(users, router, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE)
    users.prepare(rules)
    daemon = Invalidator(users.url, [router], tmp_path / "state", tmp_path, "--rules", str(rules))

    def stat(name: str) -> int:
        return int(stats(daemon.port).get(name, "0"))

    try:
        users.run("INSERT INTO app.users (id, email) VALUES (1, 'a')")
        assert keys_until(router, users, "first") == ({"user:1", "user_by_email:a"}, [])
        for number, (bad, reason) in enumerate(
            [
                (RULE + '[[rule]]\ntable = "users"\nkeys = ["x"]\n', "line 5, column 9: the table"),
                (RULE.replace("{id}", "{gone}"), "has no column gone"),
                (RULE.replace("{id}", "{score}"), "of type double"),
                ("", "has no [[rule]]"),
            ],
            start=1,
        ):
            rules.write_text(bad)
            eventually(lambda number=number: stat("rules_refused") == number, f"{bad} is refused", 30)
            assert reason in daemon.log(), daemon.log()
        users.run("UPDATE app.users SET email = 'b'")
        assert keys_until(router, users, "second") == ({"user:1", "user_by_email:a", "user_by_email:b"}, [])
        rules.write_text(RULE.replace("user:", "account:"))
        eventually(lambda: stat("rules_loaded") == 2, "the changed file is loaded", 30)
        users.run("UPDATE app.users SET email = 'c'")
        assert keys_until(router, users, "third") == ({"account:1", "user_by_email:b", "user_by_email:c"}, [])
        daemon.running.send_signal(signal.SIGHUP)
        eventually(lambda: stat("rules_loaded") == 3, "SIGHUP loads the same file", 30)
        users.run("ALTER TABLE app.users DROP COLUMN bio")
        eventually(lambda: stat("table:app.users:inexpressible") == 1, "the ALTER is counted", 30)
    finally:
        daemon.stop()


def test_changes_that_name_no_key_are_counted_for_their_table(users, router, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE.replace('"user:{id}", ', ""))
    users.prepare(rules)
    daemon = Invalidator(users.url, [router], tmp_path / "state", tmp_path, "--rules", str(rules))
    names = ("table:app.users:without_key", "row_changes_without_key", "row_keys_refused", "row_changes_inexpressible")

    def shown() -> tuple[str | None, ...]:
        found = stats(daemon.port)
        return tuple(found.get(name) for name in names)

    try:
        users.run("INSERT INTO app.users (id, email) VALUES (1, 'a')")
        assert keys_until(router, users, "first") == ({"user_by_email:a"}, [])
        assert shown() == (None, "0", "0", "0"), "a table without such changes is not listed"
        users.run("INSERT INTO app.users (id) VALUES (2)")
        users.run("INSERT INTO app.users (id, email) VALUES (3, 'two words')")
        users.run("UPDATE app.users SET email = 'b' WHERE id = 2")
        assert keys_until(router, users, "second") == ({"user_by_email:b"}, [])
        assert shown() == ("2", "2", "1", "0"), "a NULL, and a key that no server accepts"
        users.run("ALTER TABLE app.users DROP COLUMN bio")
        eventually(lambda: shown() == ("3", "3", "1", "1"), "the ALTER, which names no row, is counted", 30)
    finally:
        daemon.stop()


def test_a_refused_file_is_loaded_once_the_tables_fit(users, router, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE)
    users.prepare(rules)
    daemon = Invalidator(users.url, [router], tmp_path / "state", tmp_path, "--rules", str(rules))
    try:
        rules.write_text(RULE.replace("user:{id}", "user:{nick}"))
        eventually(lambda: stats(daemon.port)["rules_refused"] == "1", "the file is refused", 30)
        users.run("ALTER TABLE app.users ADD COLUMN nick VARCHAR(20)")
        eventually(lambda: stats(daemon.port)["rules_loaded"] == "2", "the file is loaded", 30)
        users.run("INSERT INTO app.users (id, nick) VALUES (1, 'ada')")
        eventually(lambda: router.has("user:ada"), "the new rule is used", 30)
        shown = stats(daemon.port)
        assert (shown["rules_refused"], daemon.log().count("has no column nick")) == ("1", 1)
    finally:
        daemon.stop()


@WITH_BINLOG
def test_a_replay_finds_the_keys_of_rules_and_flushes_nothing(users, router, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE + 'otherwise = "flush-cluster"\n')
    with users.connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_binlog_pos" if users.sql is MARIADB else "SELECT @@gtid_executed")
        start = cursor.fetchone()[0].replace("\n", "")
    users.run("INSERT INTO app.users (id, email) VALUES (1, 'a')")
    users.mark("marked")
    users.run("INSERT INTO app.users (id) VALUES (2) /* lookaside: named */")
    users.run("TRUNCATE TABLE app.users")

    def replay(*options):
        """The summary, what the router got, and what was written to standard error."""
        where = ["--database", users.url, "--cluster", f"one=127.0.0.1:{router.ports[0]}", "--from", start, "--json"]
        done = operate("replay", *where, *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), router.take(), done.stderr

    by_rules = {"user:1", "user:2", "user_by_email:a"}
    summary, found, stderr = replay("--rules", rules)
    assert found == (by_rules | {"marked", "named"}, 0), summary
    assert (summary["deletes"], summary["flushes_skipped"]) == (5, 1) and "flush_all" in stderr, (summary, stderr)
    summary, found, _ = replay("--rules", rules, "--key-prefix", "user:")
    assert (found, summary["flushes_skipped"]) == (({"user:1", "user:2"}, 0), 1), summary
    summary, found, _ = replay("--rules", rules, "--dry-run")
    assert (found, summary["deletes"], summary["flushes_skipped"]) == ((set(), 0), 5, 1), summary
    assert replay()[1] == ({"marked", "named"}, 0)
    assert replay("--outbox-only")[1] == ({"marked"}, 0)
    users.run("SET GLOBAL binlog_format = 'MIXED'")
    try:
        assert replay("--comments-only")[1] == ({"named"}, 0)
        where = ["--database", users.url, "--cluster", "one=127.0.0.1:1", "--from", start]
        refused = operate("replay", *where)
        assert refused.returncode == 1 and "binlog_format" in refused.stderr, refused.stderr
    finally:
        users.run("SET GLOBAL binlog_format = 'ROW'")
    rules.write_text(RULE.replace("{id}", "{gone}"))
    refused = operate("replay", *where, "--rules", rules)
    assert refused.returncode == 1 and "has no column gone" in refused.stderr, refused.stderr


def start_refused(users, rules: Path, state: Path) -> subprocess.CompletedProcess:
    """An invalidator that does not start."""
    return subprocess.run(
        [PROGRAMS / "lookaside-invalidator", "--source", users.url, "--state-dir", state,
         "--cluster", "one=127.0.0.1:1", "--listen", "127.0.0.1:0", "--rules", rules],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_rules_that_cannot_be_used_are_refused_at_the_start(users, tmp_path):
    rules = tmp_path / "rules.toml"
    for text, code, reason in [
        ("[[rule]]\ntable = 1\n", 2, "rules.toml: line 2, column 9"),
        (RULE.replace("{email}", "{score}"), 1, "has column score, which no key can have: it is of type double"),
    ]:
        rules.write_text(text)
        started = start_refused(users, rules, tmp_path / "state")
        assert started.returncode == code and reason in started.stderr, started.stderr


@WITH_BINLOG
def test_rules_that_need_what_the_log_lacks_are_refused_at_the_start(users, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE)
    for setting in ("binlog_row_image", "binlog_row_metadata"):
        users.run(f"SET GLOBAL {setting} = 'MINIMAL'")
        try:
            started = start_refused(users, rules, tmp_path / "state")
        finally:
            users.run(f"SET GLOBAL {setting} = 'FULL'")
        assert started.returncode == 1 and f"SET GLOBAL {setting} = 'FULL'" in started.stderr, started.stderr


@WITH_BINLOG
def test_rules_that_need_what_the_whole_log_lacks_are_refused_at_each_start(users, router, tmp_path):
    """A start with a position only logged it: each change of a row was inexpressible then, and flushed the cluster."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE + 'otherwise = "flush-cluster"\n')
    daemon = Invalidator(users.url, [router], tmp_path / "state", tmp_path, "--rules", str(rules))
    try:
        assert keys_until(router, users, "begun") == (set(), [])
        assert daemon.stop() == 0
        assert list((tmp_path / "state").glob("*.position.json")), "the next start is not the first one"
        users.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
        started = start_refused(users, rules, tmp_path / "state")
        assert started.returncode == 1 and "SET GLOBAL binlog_row_metadata = 'FULL'" in started.stderr, started.stderr
        users.run("SET GLOBAL binlog_row_metadata = 'FULL'")
        # What the log lacks of single tables is logged.
        users.run("SET GLOBAL binlog_row_image = 'MINIMAL'")
        daemon.start()
        daemon.wait_running(1)
        assert "column email, of which the log lacks the old value" in daemon.log(), daemon.log()
    finally:
        daemon.stop()
        users.run("SET GLOBAL binlog_row_metadata = 'FULL'")
        users.run("SET GLOBAL binlog_row_image = 'FULL'")


@WITH_BINLOG
def test_check_rules_reports_every_problem(users, tmp_path):
    rules = tmp_path / "rules.toml"
    text = RULE.replace('"]', '", "{bio}", "{score}", "{gone}"]')
    rules.write_text(text + '[[rule]]\ntable = "app.none"\nkeys = ["x"]\n')
    users.run("SET GLOBAL binlog_row_image = 'MINIMAL'")
    users.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    # For this the invalidator does not start, whatever the rules are.
    users.run("SET @sync_binlog = @@GLOBAL.sync_binlog")
    users.run("SET GLOBAL sync_binlog = 0")
    try:
        checked = operate("check-rules", "--rules", rules, "--database", users.url, "--json")
        shown = operate("check-rules", "--rules", rules, "--database", users.url)
    finally:
        users.run("SET GLOBAL binlog_row_image = 'FULL'")
        users.run("SET GLOBAL binlog_row_metadata = 'FULL'")
        users.run("SET GLOBAL sync_binlog = @sync_binlog")
    assert checked.returncode == shown.returncode == 1
    report = json.loads(checked.stdout)
    found = {(problem["table"], problem["kind"]) for problem in report["problems"]}
    of_foreign_key = set() if users.logs_cascades else {("app.users", "warning")}
    assert not report["good"] and found - of_foreign_key == {
        (None, "log_lacks"), ("app.none", "table_missing"), ("app.users", "rule_refused"), ("app.users", "log_lacks"),
        (None, "warning"),
    }  # fmt: skip
    assert of_foreign_key <= found
    why = " ".join(problem["why"] for problem in report["problems"])
    for part in [
        "column email, of which the log lacks",
        "of type double",
        "no column gone",
        "sync_binlog is 0: ",
        *(["ON DELETE CASCADE"] if of_foreign_key else []),
    ]:
        assert part in why and part in shown.stdout, why
    rules.write_text(RULE)
    good = operate("check-rules", "--rules", rules, "--database", users.url)
    assert good.returncode == 0 and "1 rule fit" in good.stdout, good.stdout + good.stderr
