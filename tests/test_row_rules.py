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
from processes import PROGRAMS, ROOT, Invalidator, eventually, stats
from recording_router import RecordingRouter
from row_model import COMMON_KINDS, MARIADB, MYSQL, POSTGRES, Session, Table, create_sql, random_step, random_table

SOAK = bool(os.environ.get("LOOKASIDE_SOAK"))
OUTBOX = "CREATE TABLE app.lookaside_outbox (item VARBINARY(250))"
STATEMENTS = 60
# With PostgreSQL a run waits for looks at the catalogue, two seconds apart.
SEEDS = {"mariadb": 200, "mysql": 200, "postgres": 50} if SOAK else {"mariadb": 10, "mysql": 10, "postgres": 4}


def operate(*arguments):
    """Runs `lookaside invalidator`."""
    command = [str(PROGRAMS / "lookaside"), "invalidator", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


class MariaDbClient:
    """A plain client of MariaDB. The tests of another database need the same methods, and its SQL."""

    sql = MARIADB
    schema = "app"
    # Whether rows that a statement leaves as they were name keys: superfluous ones.
    has_unchanged_rows = False

    def __init__(self, server, url: str) -> None:
        self.url = url
        self.connection = server.connect(schema=None)
        self.run(self.sql.session)
        self.run(OUTBOX)

    def run(self, statement: str) -> None:
        """Runs a statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def vary_log(self, seed: int) -> None:
        """Chooses settings of the log that must make no difference."""
        self.run(f"SET GLOBAL binlog_row_metadata = '{['FULL', 'NO_LOG', 'MINIMAL'][seed % 3]}'")
        self.run(f"SET GLOBAL log_bin_compress = {seed % 2}")

    def accepting_url(self) -> str:
        """The URL of a log whose rows may have no names of columns; they are those of the catalogue then."""
        return self.url + (",binlog_row_metadata" if "?" in self.url else "?accept-unsafe=binlog_row_metadata")

    def close(self) -> None:
        """Ends the connection; the log is as it was."""
        self.vary_log(0)
        self.connection.close()

    def mark(self, key: str) -> None:
        """Commits an outbox row with this key."""
        self.run(f"INSERT INTO {self.schema}.lookaside_outbox VALUES ('{key}')")

    def create(self, table: Table) -> None:
        """Creates a table."""
        self.run(create_sql(table, self.sql))

    def prepare(self, rules: Path) -> None:
        """Does to the database what the rules need."""


class MysqlClient(MariaDbClient):
    """The same for MySQL, which compresses whole transactions."""

    sql = MYSQL

    def vary_log(self, seed: int) -> None:
        self.run(f"SET GLOBAL binlog_row_metadata = '{['FULL', 'MINIMAL'][seed % 2]}'")
        self.run(f"SET SESSION binlog_transaction_compression = {seed % 3 > 0}")


class PostgresClient:
    """The same for PostgreSQL."""

    sql = POSTGRES
    schema = "app"
    has_unchanged_rows = True

    def __init__(self, server) -> None:
        self.url = server.url
        self.connection = server.connect()
        self.run("CREATE SCHEMA app")
        self.run(self.sql.session)

    def run(self, statement: str) -> None:
        """Runs a statement."""
        self.connection.execute(statement)

    def vary_log(self, seed: int) -> None:
        """Chooses how values are written as text, unless a session chooses by itself."""
        self.run(f"ALTER DATABASE app SET DateStyle = '{['ISO', 'German', 'SQL, MDY'][seed % 3]}'")
        self.run(f"ALTER DATABASE app SET TimeZone = '{['UTC', 'Asia/Kolkata'][seed % 2]}'")
        self.run(f"ALTER DATABASE app SET bytea_output = '{['escape', 'hex'][seed % 2]}'")
        self.has_unchanged_rows = seed % 4 < 2

    def accepting_url(self) -> str:
        """The URL: the log always has names."""
        return self.url

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()

    def create(self, table: Table) -> None:
        """Creates a table. If its log has no old rows unless keys need them, an unchanged row is not known for one."""
        self.run(create_sql(table, self.sql))
        if not self.has_unchanged_rows:
            self.run(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL")

    def mark(self, key: str) -> None:
        """Commits a message with this key."""
        self.run(f"SELECT lookaside_invalidate('{key}')")

    def prepare(self, rules: Path) -> None:
        """Publishes the tables of the rules, with the identities that they need."""
        done = operate("setup", "--database", self.url, "--rules", rules)
        assert done.returncode == 0, done.stderr


DATABASES = ["mariadb", "mysql", "postgres"]
WITH_BINLOG = pytest.mark.parametrize("client", ["mariadb", "mysql"], indirect=True)


@pytest.fixture(params=DATABASES)
def client(request):
    """A client of each database that has row rules."""
    server = request.getfixturevalue(request.param)
    match request.param:
        case "mariadb":
            client = MariaDbClient(server, server.url)
        case "mysql":
            client = MysqlClient(server, server.url())
        case _:
            client = PostgresClient(server)
    yield client
    client.close()


@pytest.fixture
def router():
    """A router that records deletes."""
    router = RecordingRouter()
    yield router
    router.stop()


def keys_until(
    router: RecordingRouter, client, mark: str, flushed: list[str] | None = None, expected: set[str] | None = None
) -> tuple[set[str], list[str]]:
    """Everything that was deleted or flushed before a key that is committed now, and at least these flushes with
    `expected`, which may come after it."""
    flushed = flushed or []
    client.mark(mark)
    eventually(
        lambda: router.has(mark) and set(flushed) <= set(router.flushed), f"{mark} is deleted after {flushed}", 60
    )
    if flushed:
        eventually(lambda: all(router.has(key) for key in expected or ()), f"{expected} are deleted", 60)
    keys, flushed = router.take_flushed()
    return keys - {mark}, flushed


def begin_session(seed: int, sql) -> Session:
    """Three random tables. Every other seed has the kinds of columns that all databases have."""
    session = Session(seed, [], sql)
    kinds = COMMON_KINDS if seed % 2 == 0 else sorted(sql.types)
    session.tables = [random_table(session.random, f"app.t{number}", kinds) for number in range(3)]
    return session


@pytest.mark.parametrize(
    ("client", "seed"),
    [(database, seed) for database, seeds in SEEDS.items() for seed in range(seeds)],
    indirect=["client"],
)
def test_random_statements_delete_the_keys_of_the_model(client, router, tmp_path, seed):
    session = begin_session(seed, client.sql)
    client.vary_log(seed)
    for table in session.tables:
        client.create(table)
    rules = tmp_path / "rules.toml"
    rules.write_text("\n".join(table.rule() for table in session.tables))
    client.prepare(rules)
    checked = operate("check-rules", "--rules", rules, "--database", client.accepting_url(), "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    daemon = Invalidator(client.accepting_url(), [router], tmp_path / "state", tmp_path, "--rules", str(rules))
    try:
        # The catalogue has been read, so that an ALTER TABLE is noticed.
        assert keys_until(router, client, "begun") == (set(), [])
        for number in range(STATEMENTS):
            step = random_step(session)
            for statement in step.statements:
                client.run(statement)
            found, flushed = keys_until(router, client, f"mark:{number}", step.flushed, step.keys)
            if client.has_unchanged_rows:
                found -= step.unchanged - step.keys
            assert (found, flushed) == (step.keys, step.flushed), step.statements
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
    sessions = [begin_session(seed, POSTGRES) for seed in range(SEEDS["postgres"])]
    flushes = [table.flushes() for session in sessions for table in session.tables]
    assert [""] in flushes
    assert {len(prefixes) for prefixes in flushes if "" not in prefixes} >= {1, 2}


USERS = """CREATE TABLE app.users (id INT PRIMARY KEY, email VARCHAR(100), score DOUBLE PRECISION, bio TEXT,
  parent INT, FOREIGN KEY (parent) REFERENCES app.users (id) ON DELETE CASCADE)"""
RULE = '[[rule]]\ntable = "app.users"\nkeys = ["user:{id}", "user_by_email:{email}"]\n'


@pytest.fixture
def users(client):
    """A client, and a table."""
    client.run(USERS)
    return client


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
    try:
        checked = operate("check-rules", "--rules", rules, "--database", users.url, "--json")
        shown = operate("check-rules", "--rules", rules, "--database", users.url)
    finally:
        users.run("SET GLOBAL binlog_row_image = 'FULL'")
        users.run("SET GLOBAL binlog_row_metadata = 'FULL'")
    assert checked.returncode == shown.returncode == 1
    report = json.loads(checked.stdout)
    found = {(problem["table"], problem["kind"]) for problem in report["problems"]}
    assert not report["good"] and found == {
        (None, "log_lacks"), ("app.none", "table_missing"), ("app.users", "rule_refused"), ("app.users", "log_lacks"),
        ("app.users", "warning"),
    }  # fmt: skip
    why = " ".join(problem["why"] for problem in report["problems"])
    for part in ["column email, of which the log lacks", "of type double", "no column gone", "ON DELETE CASCADE"]:
        assert part in why and part in shown.stdout, why
    rules.write_text(RULE)
    good = operate("check-rules", "--rules", rules, "--database", users.url)
    assert good.returncode == 0 and "1 rule fit" in good.stdout, good.stdout + good.stderr


def test_try_shows_what_would_be_deleted(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE)
    sql = operate("try", "--sql", "UPDATE t SET a = '/* lookaside: no */' /* lookaside: b a */")
    assert (sql.returncode, sql.stdout.split()) == (0, ["a", "b"]), sql.stderr
    after, before = json.dumps({"id": 42, "email": "new"}), json.dumps({"id": 42})
    row = operate("try", "--rules", rules, "--row", "app.users", after)
    assert row.stdout.split() == ["user:42", "user_by_email:new"], row.stderr
    update = operate("try", "--rules", rules, "--row", "app.users", after, "--before", before, "--json")
    shown = json.loads(update.stdout)
    assert shown["keys"] == ["user:42", "user_by_email:new"] and "lacks a column" in shown["notes"][0]
    assert operate("try", "--rules", rules, "--row", "app.posts", after).returncode == 1
    sample = ROOT / "docs" / "operating" / "rules.toml"
    post = operate("try", "--rules", sample, "--row", "app.posts", '{"id": 7, "author_id": null}')
    assert post.stdout.split() == ["front_page", "post:7"], post.stderr
    # It printed nothing at all.
    rules.write_text(RULE.replace("\nkeys", '\nignore_columns = ["seen"]\nkeys', 1))
    seen = [json.dumps({"id": 42, "email": "a", "seen": at}) for at in (1, 2)]
    for arguments in (["--rules", rules, "--row", "app.users", seen[1], "--before", seen[0]], ["--sql", "SELECT 1"]):
        ignored = operate("try", *arguments)
        assert (ignored.returncode, ignored.stdout) == (0, "") and "no key:" in ignored.stderr, ignored
    assert operate("try").returncode == 2


def test_try_shows_the_tables_with_a_rule_that_a_statement_changes(tmp_path):
    """Only the keys of its comments were shown, also for a table with a rule."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        RULE.replace('"]', '", "all"]')
        + 'otherwise = "flush-cluster"\n[[rule]]\ntable = "b.users"\nkeys = ["b:{{{a}"]\n'
    )

    def tried(sql: str) -> dict:
        done = operate("try", "--rules", rules, "--json", "--sql", sql)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    keys = ["user:{id}", "user_by_email:{email}", "all"]
    update = tried("UPDATE app.users SET email = 'x' WHERE id = 1 /* lookaside: named */")
    assert update["keys"] == ["named"] and not update["flush"]
    (table,) = update["tables"]
    assert (table["table"], table["line"], table["change"], table["keys"]) == ("app.users", 2, "rows", keys)
    assert f"deletes {' '.join(keys)}, with the old and the new values" in update["notes"][0]
    truncate = tried("TRUNCATE app.users")
    assert (truncate["keys"], truncate["flush"], truncate["tables"][0]["change"]) == (["all"], True, "truncate")
    assert "truncated: the cluster is flushed" in truncate["notes"][0]
    unqualified = tried("DELETE FROM users")
    assert [(table["table"], table["keys"][0]) for table in unqualified["tables"]] == [
        ("app.users", "user:{id}"), ("b.users", "b:{{{a}"),
    ]  # fmt: skip
    # Each of these was answered wrongly.
    for sql, changes in [
        ("BEGIN; DELETE FROM app.users; COMMIT", [("app.users", "rows")]),
        ("UPDATE b.users SET a = ';'; TRUNCATE app.users", [("b.users", "rows"), ("app.users", "truncate")]),
        ("MERGE INTO app.users USING b.users ON true WHEN MATCHED THEN DELETE", [("app.users", "rows")]),
        ("COPY app.users FROM STDIN", [("app.users", "rows")]),
        ("WITH old AS (DELETE FROM app.users RETURNING *) SELECT * FROM old", [("app.users", "rows")]),
        ("INSERT INTO b.users SELECT * FROM app.users", [("b.users", "rows")]),
    ]:
        found = [(table["table"], table["change"]) for table in tried(sql)["tables"]]
        assert sorted(found) == sorted(changes), sql
    for sql in (
        "UPDATE app.posts SET a = 'app.users'",
        "CREATE TABLE app.users (id INT)",
        "SELECT * FROM app.users FOR UPDATE",
        "BEGIN; SELECT * FROM app.users; COMMIT",
        "COPY app.users TO STDOUT",
    ):
        other = tried(sql)
        assert other["tables"] == [] and "changes no table with a rule" in other["notes"][0], other


def test_try_shows_what_the_database_makes_of_a_statement(users, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE)
    users.prepare(rules)
    rules.write_text(RULE + '[[rule]]\ntable = "other.users"\nkeys = ["x"]\n')
    users.run("INSERT INTO app.users (id) VALUES (1)")
    if users.sql is POSTGRES:
        users.run("ALTER DATABASE app SET search_path = app")

    def tried(sql: str) -> dict:
        done = operate("try", "--rules", rules, "--database", users.url, "--json", "--sql", sql)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = tried("DELETE FROM users /* lookaside: named */")
    assert [table["table"] for table in found["tables"]] == ["app.users"]
    if users.sql is POSTGRES:
        assert found["keys"] == ["user:1"] and "comments name no keys" in found["notes"][0]
    else:
        assert found["keys"] == ["named", "user:1"]
    missing = tried("DELETE FROM other.users")["tables"][0]
    assert any("does not exist" in why for why in missing["problems"]), missing
    rules.write_text(RULE.replace("{id}", "{gone}"))
    unfit = tried("DELETE FROM app.users")
    assert any("has no column gone" in note for note in unfit["notes"]), unfit
    with users.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM app.users")
        assert cursor.fetchone() == (1,), "nothing is executed"


TYPED = """CREATE TABLE app.typed (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(9,2), at TIMESTAMP(2) NULL,
  data {bytes}, note VARCHAR(20))"""
TYPED_RULE = """[[rule]]
table = "app.typed"
keys = ["typed:{id}", "name:{name}", "price:{price}", "at:{at}", "data:{data}", "all"]
ignore_columns = ["note"]
"""


@pytest.fixture
def typed(client, tmp_path):
    """A client, a table with rows, and its rule file."""
    is_postgres = client.sql is POSTGRES
    client.run(TYPED.format(bytes="BYTEA" if is_postgres else "VARBINARY(20)"))
    if not is_postgres:
        client.run("SET time_zone = '+00:00'")
    data = "'\\x00ff'" if is_postgres else "X'00ff'"
    for row, name in ((1, "'ada'"), (2, "'it''s; DROP'"), (3, "NULL")):
        client.run(f"INSERT INTO app.typed VALUES ({row}, {name}, {row}.5, '2026-11-22 09:05:00.50', {data}, NULL)")
    if is_postgres:
        # An UPDATE of ignored columns is known to be one only then.
        client.run("ALTER TABLE app.typed REPLICA IDENTITY FULL")
    client.rules = tmp_path / "rules.toml"
    client.rules.write_text(TYPED_RULE)
    client.prepare(client.rules)
    return client


def try_rows(typed, sql: str) -> dict:
    """What `try` shows of a statement, whose rows it reads."""
    done = operate("try", "--rules", typed.rules, "--database", typed.url, "--json", "--sql", sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_try_shows_the_keys_of_the_rows_that_a_statement_would_change(typed, router, tmp_path):
    """And what the invalidator deletes when the statement is executed is the same."""
    at = "at:2026-11-22T09:05:00.5" + ("" if typed.sql is POSTGRES else "Z")

    def keys(row: int, *others: str) -> list[str]:
        return sorted(["all", at, "data:00ff", f"price:{row}.50", f"typed:{row}", *others])

    statements = [
        ("UPDATE app.typed SET name = 'eve' WHERE id = 1", keys(1, "name:ada", "name:eve"), 1),
        ("UPDATE app.typed AS t SET name = 'it''s' WHERE t.name LIKE 'it%'", keys(2, "name:it's"), 1),
        ("UPDATE app.typed SET note = 'x' WHERE id = 1", [], None),
        ("DELETE FROM app.typed WHERE name IS NULL /* a comment; */", keys(3), 1),
        ("DELETE FROM app.typed WHERE id = 9", [], 0),
        ("INSERT INTO app.typed (id, name) VALUES (7, 'bob')", ["all", "name:bob", "typed:7"], 1),
    ]
    daemon = Invalidator(typed.url, [router], tmp_path / "state", tmp_path, "--rules", str(typed.rules))
    try:
        assert keys_until(router, typed, "begun") == (set(), [])
        for sql, expected, rows in statements:
            shown = try_rows(typed, sql)
            (table,) = shown["tables"]
            assert (shown["keys"], table["rows"], table["change"]) == (expected, rows, "rows"), shown
            # `it's; DROP` has a space: it is no key.
            refused = any("refused as a key" in note for note in shown["notes"])
            assert refused == ("LIKE" in sql), shown
            typed.run(sql)
            assert keys_until(router, typed, "done")[0] == set(expected), sql
    finally:
        daemon.stop()


def test_try_executes_nothing_and_shows_what_it_does_not_know(typed):
    def rows() -> list:
        with typed.connection.cursor() as cursor:
            cursor.execute("SELECT id, name, note FROM app.typed ORDER BY id")
            return list(cursor.fetchall())

    before = rows()
    for sql, why in [
        ("DELETE FROM app.typed WHERE sleep(9) = 0", "its condition calls a function"),
        ("DELETE FROM app.typed WHERE id = 1) AS a; DELETE FROM app.typed; --", "parentheses do not match"),
        ("DELETE FROM app.typed WHERE missing = 1", "missing"),
        ("UPDATE app.typed SET name = upper(name) WHERE id = 1", "keys with new values that are no literals"),
        ("UPDATE app.typed SET price = 2 WHERE id = 1; TRUNCATE app.typed", "1 row of app.typed matches now"),
        ("INSERT INTO app.typed SELECT 9", "it is no INSERT of a list of columns"),
        ("DELETE FROM app.typed", "3 rows of app.typed match now"),
    ]:
        shown = try_rows(typed, sql)
        assert any(why in note for note in shown["notes"]), (sql, shown)
    assert rows() == before
    typed.run("INSERT INTO app.typed (id) VALUES " + ", ".join(f"({row})" for row in range(10, 150)))
    many = try_rows(typed, "DELETE FROM app.typed WHERE id >= 10")
    assert "more than 100 rows of app.typed match now" in " ".join(many["notes"]), many
    assert (len(many["keys"]), many["tables"][0]["rows"]) == (101, 100)
