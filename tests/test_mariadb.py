"""A commit in MariaDB empties every cluster's cache; what is not committed deletes nothing; a crash loses nothing."""

import threading

import pytest
from cached_keys import cached, fill, gone
from processes import Invalidator, answers, eventually, stats


@pytest.fixture
def invalidator(mariadb, clusters, tmp_path):
    """The invalidator between the database and both clusters."""
    daemon = Invalidator(mariadb.url, clusters, tmp_path / "state", tmp_path)
    yield daemon
    daemon.stop()


@pytest.fixture
def users(mariadb):
    """A connection, and a table with a few rows."""
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(40)) ENGINE=InnoDB")
        cursor.execute("INSERT INTO users VALUES (1, 'ada'), (2, 'grace'), (3, 'barbara')")
    yield connection
    connection.close()


def test_a_row_changed_by_pymysql_is_gone_from_both_clusters(clusters, invalidator, users):
    fill(clusters, ["user:1", "user:2"])
    with users.cursor() as cursor:
        cursor.execute("UPDATE users SET name = %s WHERE id = 1 /* lookaside: user:1 */", ("Ada",))
    gone(clusters, ["user:1"])
    assert cached(clusters, ["user:2"]) == {("one", "user:2"), ("two", "user:2")}


def test_a_row_changed_by_the_mariadb_client_is_gone_from_both_clusters(clusters, invalidator, mariadb, users):
    fill(clusters, ["user:1", "user:2", "user:3"])
    mariadb.shell("UPDATE users SET name = 'Grace' WHERE id = 2 /* lookaside: user:2 user:3 */")
    gone(clusters, ["user:2", "user:3"])
    assert len(cached(clusters, ["user:1"])) == 2


def test_rows_of_the_outbox_table_name_keys(clusters, invalidator, users):
    fill(clusters, ["user:1", "list:users"])
    with users.cursor() as cursor:
        cursor.execute("CREATE TABLE lookaside_outbox (`key` VARBINARY(250) NOT NULL) ENGINE=InnoDB")
        cursor.execute("BEGIN")
        cursor.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
        cursor.execute("INSERT INTO lookaside_outbox VALUES ('user:1'), ('list:users')")
        cursor.execute("COMMIT")
    gone(clusters, ["user:1", "list:users"])


def test_a_rolled_back_transaction_deletes_nothing(clusters, invalidator, users):
    fill(clusters, ["user:1", "user:2"])
    with users.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE users SET name = 'nobody' WHERE id = 1 /* lookaside: user:1 */")
        cursor.execute("ROLLBACK")
        # The log is in order: when a later commit has been applied, an earlier one would have been.
        cursor.execute("UPDATE users SET name = 'Grace' WHERE id = 2 /* lookaside: user:2 */")
    gone(clusters, ["user:2"])
    assert len(cached(clusters, ["user:1"])) == 2
    assert int(stats(invalidator.port)["invalidations_total"]) > 0


def test_a_writer_s_own_delete_stays_in_its_cluster(clusters):
    # It is the invalidator that tells the others; a delete to all of them by routing prefix is in test_up.py.
    fill(clusters, ["user:9"])
    client = clusters[0].client()
    assert client.delete("user:9")
    client.close()
    assert cached(clusters, ["user:9"]) == {("two", "user:9")}


@pytest.mark.timeout(300)
def test_an_invalidator_killed_in_the_middle_of_ten_thousand_commits_loses_none(clusters, invalidator, mariadb, users):
    commits, writers = 10_000, 4
    keys = [f"row:{index}" for index in range(commits)]
    with users.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        cursor.execute("CREATE TABLE versions (id INT PRIMARY KEY, version INT NOT NULL) ENGINE=InnoDB")
        for first in range(0, commits, 1000):
            cursor.execute(
                "INSERT INTO versions VALUES " + ",".join(f"({index},0)" for index in range(first, first + 1000))
            )
    for first in range(0, commits, 1000):
        fill(clusters, keys[first : first + 1000])
    committed = [0] * writers
    # However quick the writers are, some commits are left for each kill.
    allowed = [0.45]

    def write(writer: int) -> None:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            for index in range(writer, commits, writers):
                eventually(lambda: sum(committed) < allowed[0] * commits, "the kill that comes before this commit", 120)
                cursor.execute(f"UPDATE versions SET version = 1 WHERE id = {index} /* lookaside: row:{index} */")
                committed[writer] += 1

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    kills = 0
    for share, then_allowed in ((0.3, 0.65), (0.5, 0.85), (0.7, 2.0)):
        eventually(lambda share=share: sum(committed) > share * commits, f"{share:.0%} of the commits", 120)
        eventually(lambda: int(stats(invalidator.port)["invalidations_total"]) > 0, "deletes are under way")
        assert sum(committed) < commits, "it is to be killed while commits and deletes are under way"
        invalidator.kill()
        kills += 1
        allowed[0] = then_allowed
        invalidator.start()
        eventually(lambda: answers(invalidator.port), "it is back")
    for thread in threads:
        thread.join(120)
    assert sum(committed) == commits and kills == 3

    for first in range(0, commits, 1000):
        gone(clusters, keys[first : first + 1000], 60)


def test_the_return_of_the_database_is_noticed_soon(clusters, invalidator, mariadb, users):
    """The pauses between attempts grew to five seconds, so the first deletes after an outage were that late. Forty
    attempts would have taken minutes.

    An attempt follows the last one that made no connection after 0.2 s (`CONNECT_DELAY_MAX` in
    crates/invalidator/src/source/mod.rs), and after twice as much one that was connected and failed, which can be the
    first one that meets the server. So the log is read again at most 0.4 s after the return."""
    fill(clusters, ["user:1"])
    mariadb.kill()
    failures = int(stats(invalidator.port)["source_failures"]) + 40
    # Twenty attempts for each cluster, 4 s. With the pauses of a second after other failures they would take 20 s.
    eventually(lambda: int(stats(invalidator.port)["source_failures"]) >= failures, "it tries five times a second", 12)
    mariadb.start()
    mariadb.wait_ready(mariadb.accepts, 60)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        # Not an update: the crash may have cost the rows that were inserted just before.
        cursor.execute("INSERT INTO users VALUES (4, 'Ada') /* lookaside: user:1 */")
        # The rest of the two seconds is for logins and queries on a busy machine.
        gone(clusters, ["user:1"], seconds=2)
