"""`lookaside audit` goes on when a database, a cluster, a server or a delete fails, and says what has failed."""

import json
import subprocess

import pytest
from audit import CREATE, QUERIES, ROWS, Audit, database_fixture, fill_users, restart_router, sqlite_audit  # noqa: F401 - a fixture
from mariadb import USER
from processes import answers, eventually, frozen


def test_a_value_whose_delete_fails_is_reported(database, cluster, tmp_path):
    # With --once the failure of the delete was the end, before the key of the wrong value was printed.
    audit = sqlite_audit(tmp_path, cluster)
    fill_users(cluster)
    cluster.client().set("user:1", "wrong")
    configuration = cluster.configuration()
    configuration["routes"][0]["route"]["operation_policies"]["delete"] = "ErrorRoute|no deletes"
    restart_router(cluster, configuration)
    done = audit.execute("--repair")
    assert done.returncode == 1 and "deleting user:1: " in done.stderr, done
    wrong = {"key": "user:1", "cluster": "one", "found": "stale", "deleted": False}
    assert json.loads(done.stdout) == wrong
    # The values are what distinguishes a mistaken query from an old value. They may be personal data.
    done = audit.execute("--repair", "--show-values")
    assert json.loads(done.stdout) == {**wrong, "cached": "wrong", "expected": "ada"}
    command = [word for word in audit.command if word != "--json"]
    for arguments, line in [
        ([], "stale one user:1"),
        (["--show-values"], 'stale one user:1 cached="wrong" expected="ada"'),
    ]:
        shown = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
        assert shown.stdout.splitlines()[0] == line, shown
    # Otherwise the audit goes on, and says what has failed.
    with audit.repeated("--repair") as running:
        running.wait_round(lambda counts: counts["stale"] == 1 and counts["failed"] == 1, "the delete is counted")
        assert ("stale", "one", "user:1") in running.found()
        assert "deleting user:1: " in running.log()
        # A comparison's error names the key.
        cluster.router.kill()
        eventually(lambda: "comparing " in running.log(), "the failed comparison is logged", 60)


def test_a_continuous_audit_goes_on_after_failures(database, clusters, tmp_path):
    one, two = clusters
    audit = sqlite_audit(tmp_path, one, two)
    fill_users(one)
    fill_users(two)
    with audit.repeated() as running:
        running.wait_round(lambda counts: counts["fresh"] == 12, "both clusters are compared")
        # The router of a cluster is gone. The other cluster is compared all the same.
        one.router.kill()
        two.client().set("user:1", "wrong")
        eventually(lambda: ("stale", "two", "user:1") in running.found(), "the other cluster's value is found", 60)
        running.wait_round(lambda counts: counts["failed"] >= 6, "failures are counted")
        one.router.start()
        one.router.wait_ready(lambda: answers(one.port))
        running.wait_round(lambda counts: counts["failed"] == 0, "the cluster is compared again")
        # The table goes at any moment: also between the listing of a round and its comparisons.
        for _ in range(8):
            database.execute("ALTER TABLE users RENAME TO gone")
            running.wait_round(lambda counts: counts["failed"] > 0, "failures of the database are counted")
            database.execute("ALTER TABLE gone RENAME TO users")
            running.wait_round(lambda counts: counts["failed"] == 0, "the database is read again")
        database.execute("ALTER TABLE users RENAME TO gone")
        running.wait_round(lambda counts: counts["failed"] > 0, "failures of the database are counted")
        assert "no such table" in running.log()
        database.execute("ALTER TABLE gone RENAME TO users")
        running.wait_round(lambda counts: counts["failed"] == 0, "the database is read again")
        # With --once a failure is the end.
        one.router.kill()
        done = audit.execute()
        assert done.returncode == 1 and "127.0.0.1" in done.stderr, done


@pytest.mark.parametrize("is_hung", [False, True], ids=["killed", "hung"])
def test_a_server_that_cannot_be_listed_does_not_end_the_listing_of_the_others(is_hung, database, clusters, tmp_path):
    # Nothing was compared in any cluster until the server was back, and a hung one held up each round for ten minutes.
    one, two = clusters
    audit = sqlite_audit(tmp_path, one, two)
    fill_users(two)
    # The first in the list.
    lost = one.servers[0]
    servers = [f"127.0.0.1:{server.port}" for cluster in clusters for server in cluster.servers]
    with audit.repeated("--dump", ",".join(servers)) as running:
        running.wait_round(lambda counts: counts["fresh"] == 6 and counts["failed"] == 0, "all servers are listed")

        def find_wrong_value() -> None:
            # Not before: a round may have listed all keys while the server was still there.
            eventually(lambda: f"listing the keys of {servers[0]}" in running.log(), "the reason is logged", 60)
            two.client().set("user:1", "wrong")
            eventually(lambda: ("stale", "two", "user:1") in running.found(), "the wrong value is found", 60)
            running.wait_round(lambda counts: counts["failed"] >= 1, "the failure is counted")

        if is_hung:
            with frozen(lost):
                find_wrong_value()
        else:
            lost.kill()
            find_wrong_value()
            lost.restart()
        # Its delays have grown, up to half a minute.
        running.wait_round(lambda counts: counts["failed"] == 0, "it is listed again")
        # With --once it is the end.
        lost.kill()
        done = audit.execute("--dump", ",".join(servers))
        assert done.returncode == 1 and servers[0] in done.stderr, done


def test_a_list_that_cannot_be_read_does_not_keep_the_others_from_being_compared(database, cluster, tmp_path):
    audit = sqlite_audit(tmp_path, cluster)
    audit.write_queries(
        """
[[query]]
key = "gone:{id}"
sql = "SELECT name FROM gone WHERE id = {id}"
list = "SELECT id FROM gone"
"""
        + QUERIES
    )
    fill_users(cluster)
    cluster.client().set("user:1", "wrong")
    with audit.repeated() as running:
        eventually(lambda: ("stale", "one", "user:1") in running.found(), "the wrong value is found", 60)
        running.wait_round(lambda counts: counts["failed"] == 1, "the list that failed is counted")
        assert "listing gone:{id}" in running.log() and "no such table" in running.log()


def test_a_refused_query_costs_no_login(mariadb, cluster, tmp_path):
    # Each error dropped the connection: one wrong query cost as many logins as the audit made comparisons.
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.executemany("INSERT INTO users VALUES (%s, %s, 7)", ROWS)
        audit = Audit(mariadb.url, tmp_path, cluster)
        fill_users(cluster)

        def status(name: str) -> int:
            cursor.execute(f"SHOW GLOBAL STATUS LIKE '{name}'")
            return int(cursor.fetchone()[1])

        # The server logged and counted each connection that was dropped without COM_QUIT as aborted.
        aborted, connected = status("Aborted_clients"), status("Threads_connected")
        audit.run()
        eventually(lambda: status("Threads_connected") == connected, "the audit's connection has ended")
        assert status("Aborted_clients") == aborted
        audit.write_queries(
            QUERIES
            + """
[[query]]
key = "gone:{id}"
sql = "SELECT name FROM gone WHERE id = {id}"
list = "SELECT id FROM users"
"""
        )
        with audit.repeated() as running:
            running.wait_round(lambda counts: counts["failed"] == 3 and counts["fresh"] == 6, "it compares")
            # It was there twice: as the driver's words, and as their cause.
            failure = next(line for line in running.log().splitlines() if "1146" in line)
            assert failure.count("1146") == 1, failure
            before, rounds = status("Connections"), len(running.lines())
            eventually(lambda: len(running.lines()) >= rounds + 20, "twenty rounds, each with three errors", 60)
            assert status("Connections") - before <= 3, "the health checks of others, at most"
            # A connection that is lost is made again.
            others = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = %s"
            cursor.execute(others, (USER,))
            for (id,) in cursor.fetchall():
                cursor.execute(f"KILL {id}")
            running.wait_round(lambda counts: counts["failed"] == 3 and counts["fresh"] == 6, "it compares again")


def test_bad_input_is_refused_with_its_reason(database, cluster, tmp_path):
    audit = sqlite_audit(tmp_path, cluster)

    def refusal(*arguments: str) -> str:
        done = audit.execute(*arguments)
        assert done.returncode in (1, 2) and not done.stdout, done
        return done.stderr

    audit.write_queries("[[query]]\nkey = 'user:{id}'\nsql = 'SELECT name FROM users'\n")
    assert "list" in refusal()
    (tmp_path / "keys").write_text("user:1\n")
    assert "returned 3 rows for key user:1; expected at most one" in refusal("--keys", str(tmp_path / "keys"))
    audit.write_queries("[[query]]\nkey = 'user:{id}'\nsql = 'SELECT {ip}'\n")
    assert "queries.toml" in refusal() and "{ip}" in refusal()
