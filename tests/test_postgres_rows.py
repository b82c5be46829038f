"""Row rules with PostgreSQL, where they differ from those of other databases: what `setup` and `check-rules` do,
changes that are not in the log, and the statistics of its reader."""

import subprocess
import urllib.request

import pytest
from processes import PROGRAMS, Invalidator, eventually, free_port, stats
from recording_router import RecordingRouter

RULE = """
[[rule]]
table = "public.users"
keys = ["user:{id}", "user_by_email:{email}", "users"]
otherwise = "flush-cluster"
"""


def operate(*arguments):
    """Runs `lookaside invalidator`."""
    command = [str(PROGRAMS / "lookaside"), "invalidator", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def router():
    """A router that records deletes."""
    router = RecordingRouter()
    yield router
    router.stop()


@pytest.fixture
def rules(tmp_path):
    """A rule file."""
    path = tmp_path / "rules.toml"
    path.write_text(RULE)
    return path


@pytest.fixture
def users(postgres):
    """A connection to a database with a table and without a publication."""
    connection = postgres.connect()
    connection.execute("CREATE TABLE users (id int PRIMARY KEY, email text)")
    yield connection
    connection.close()


@pytest.fixture
def invalidator(postgres, users, router, rules, tmp_path):
    """The invalidator between a database that is set up and the router."""
    done = operate("setup", "--rules", rules, "--database", postgres.url)
    assert done.returncode == 0, done.stderr
    metrics = free_port()
    daemon = Invalidator(
        postgres.url, [router], tmp_path / "state", tmp_path, "--rules", str(rules), "--metrics-address", str(metrics)
    )
    daemon.metrics_port = metrics
    yield daemon
    daemon.stop()


def deleted(router, keys, flushes=0):
    """Waits until exactly these keys are deleted, and the cluster was flushed `flushes` times."""
    eventually(lambda: all(router.has(key) for key in keys) and router.flushes >= flushes, f"{keys} are deleted", 30)
    assert router.take() == (set(keys), flushes)


def test_the_start_is_refused_with_the_statements_that_mend_it(postgres, users, rules, router, tmp_path):
    assert operate("setup", "--database", postgres.url).returncode == 0
    start = [PROGRAMS / "lookaside-invalidator", "--source", postgres.url, "--state-dir", tmp_path / "state",
             "--cluster", "one=127.0.0.1:1", "--listen", "127.0.0.1:0", "--rules", rules]  # fmt: skip
    refused = subprocess.run(start, capture_output=True, text=True, timeout=60)
    checked = operate("check-rules", "--rules", rules, "--database", postgres.url)
    assert refused.returncode == checked.returncode == 1
    for statement in [
        "ALTER TABLE public.users REPLICA IDENTITY FULL",
        'ALTER PUBLICATION "lookaside" ADD TABLE "public"."users"',
        "ALTER PUBLICATION \"lookaside\" SET (publish = 'insert, update, delete, truncate')",
    ]:
        assert statement in refused.stderr and statement in checked.stdout, refused.stderr + checked.stdout
        users.execute(statement)
    good = operate("check-rules", "--rules", rules, "--database", postgres.url)
    assert good.returncode == 0 and "1 rule fit" in good.stdout, good.stdout
    other = operate("check-rules", "--rules", rules, "--database", postgres.url, "--publication", "other")
    assert other.returncode == 1 and "does not exist" in other.stdout, other.stdout
    daemon = Invalidator(postgres.url, [router], tmp_path / "state", tmp_path, "--rules", str(rules))
    try:
        users.execute("INSERT INTO users VALUES (1, 'a')")
        deleted(router, ["user:1", "user_by_email:a", "users"])
    finally:
        daemon.stop()


def test_setup_prints_the_sql_of_rules(postgres, users, rules):
    printed = operate("setup", "--print", "--rules", rules)
    users.execute(printed.stdout)
    assert operate("check-rules", "--rules", rules, "--database", postgres.url).returncode == 0
    rules.write_text(RULE.replace("public.users", "public.none"))
    missing = operate("setup", "--rules", rules, "--database", postgres.url)
    assert missing.returncode == 1 and "public.none" in missing.stderr, missing.stderr


def test_a_table_that_is_created_again_is_noticed(invalidator, postgres, users, router, rules):
    """It is not in the publication any more, which nothing in the log shows: its changes deleted nothing."""
    users.execute("INSERT INTO users VALUES (1, 'a')")
    deleted(router, ["user:1", "user_by_email:a", "users"])
    users.execute("DROP TABLE users")
    deleted(router, ["users"], flushes=1)
    users.execute("CREATE TABLE users (id int PRIMARY KEY, email text)")
    named = 'ADD TABLE "public"."users"'
    eventually(lambda: named in invalidator.log(), "the log names the statement that mends it", 30)
    users.execute("INSERT INTO users VALUES (1, 'b')")
    assert operate("setup", "--rules", rules, "--database", postgres.url).returncode == 0
    deleted(router, ["users"], flushes=1)
    users.execute("UPDATE users SET email = 'c'")
    deleted(router, ["user:1", "user_by_email:b", "user_by_email:c", "users"])
    shown = stats(invalidator.port)
    assert shown["table:public.users:inexpressible"] == shown["row_flushes"] == "2"


def test_rows_around_a_crash_of_the_invalidator_are_not_lost(invalidator, users, router):
    users.execute("INSERT INTO users VALUES (1, 'a')")
    deleted(router, ["user:1", "user_by_email:a", "users"])
    invalidator.kill()
    users.execute("UPDATE users SET email = 'b'")
    users.execute("DELETE FROM users")
    invalidator.start()
    expected = {"user:1", "user_by_email:a", "user_by_email:b", "users"}
    eventually(lambda: all(router.has(key) for key in expected), "what was committed meanwhile is deleted", 30)


def test_ddl_just_before_a_crash_of_the_invalidator_or_after_it_is_noticed(invalidator, users, router, tmp_path):
    """It is not in the log, and the next process had nothing to compare the catalogue with."""
    users.execute("INSERT INTO users VALUES (1, 'a')")
    deleted(router, ["user:1", "user_by_email:a", "users"])
    eventually((tmp_path / "state" / "seen_tables.json").exists, "the first look is on disk")
    users.execute("ALTER TABLE users ADD bio text")
    invalidator.kill()
    invalidator.start()
    eventually(lambda: router.flushes >= 1, "the cluster is flushed for what came before the crash", 30)
    router.take()
    invalidator.kill()
    users.execute("ALTER TABLE users DROP bio")
    invalidator.start()
    eventually(lambda: router.flushes >= 1, "the cluster is flushed for what came after the crash", 30)


def test_what_the_reader_of_the_log_ignores_is_counted(invalidator, users, router):
    """The spool stands between the source and the pipelines: what the source counted reached no statistic."""
    users.execute("SELECT lookaside_invalidate('two words', 'good')")
    users.execute("SELECT pg_logical_emit_message(false, 'lookaside', 'too:early')")
    users.execute("SELECT pg_logical_emit_message(true, 'other', repeat('x', 20 * 1024 * 1024))")
    users.execute("INSERT INTO users VALUES (1, 'two words')")
    names = ("keys_rejected", "messages_untransactional", "messages_oversized")

    def counted() -> bool:
        shown = stats(invalidator.port)
        return all(shown[f"spool_{name}"] == "1" for name in names) and shown["row_keys_refused"] == "1"

    eventually(counted, "everything is counted", 30)
    assert stats(invalidator.port)["keys_rejected"] == "1"
    with urllib.request.urlopen(f"http://127.0.0.1:{invalidator.metrics_port}/metrics") as reply:
        metrics = reply.read().decode().splitlines()
    for name in names:
        assert f"lookaside_invalidator_spool_{name}_total 1" in metrics
    deleted(router, ["good", "user:1", "users"])


def test_setup_changes_nothing_for_rules_that_do_not_fit(postgres, users, rules):
    """It gave a table REPLICA IDENTITY FULL for a mistyped column, printed "is set up", and ended with success."""
    rules.write_text(RULE.replace("{email}", "{mail}"))
    done = operate("setup", "--rules", rules, "--database", postgres.url)
    assert done.returncode == 1 and f"{rules}:3: table public.users" in done.stderr and "mail" in done.stderr, done
    assert "nothing was changed" in done.stderr and done.stdout == "", done
    identity = "SELECT relreplident::text FROM pg_class WHERE relname = 'users'"
    assert users.execute(identity).fetchone() == ("d",)
    assert users.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
    rules.write_text(RULE)
    assert operate("setup", "--rules", rules, "--database", postgres.url).returncode == 0
    assert users.execute(identity).fetchone() == ("f",)


def test_a_table_that_is_not_published_does_not_keep_the_invalidator_from_starting_again(
    postgres, users, rules, router, tmp_path
):
    """A start was refused, systemd tried for ever, and no table had deletes. A running one only logs that."""
    users.execute("CREATE TABLE posts (id int PRIMARY KEY)")
    rules.write_text(RULE + '[[rule]]\ntable = "public.posts"\nkeys = ["post:{id}"]\n')
    assert operate("setup", "--rules", rules, "--database", postgres.url).returncode == 0
    daemon = Invalidator(postgres.url, [router], tmp_path / "state", tmp_path, "--rules", str(rules))
    try:
        users.execute("INSERT INTO posts VALUES (1)")
        deleted(router, ["post:1"])
        assert stats(daemon.port)["rules_uncovered"] == "0"
        daemon.stop()
        users.execute("ALTER PUBLICATION lookaside DROP TABLE posts")
        daemon.start()
        daemon.wait_running(1)
        assert 'ADD TABLE "public"."posts"' in daemon.log()
        eventually(lambda: stats(daemon.port)["rules_uncovered"] == "1", "it is counted")
        users.execute("INSERT INTO users VALUES (1, 'a')")
        eventually(lambda: router.has("user:1"), "another table has deletes", 30)
        assert operate("setup", "--rules", rules, "--database", postgres.url).returncode == 0
        eventually(lambda: stats(daemon.port)["rules_uncovered"] == "0", "it is covered again")
        users.execute("INSERT INTO posts VALUES (2)")
        eventually(lambda: router.has("post:2"), "this one, too", 30)
    finally:
        daemon.stop()
