"""`lookaside invalidator try` shows the keys of a row, and of the rows that a statement would change."""

import json
import re

import pytest
from processes import ROOT, Invalidator
from row_model import POSTGRES
from row_rule_clients import RULE, client_fixture, keys_until, operate, router_fixture, users_fixture  # noqa: F401 - fixtures


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
    if users.sql is not POSTGRES:
        with users.connection.cursor() as cursor:
            cursor.execute("SHOW GRANTS")
            user, host = re.search(r"TO [`'](.*?)[`']@[`'](.*?)[`']", cursor.fetchone()[0]).groups()
        grant = f"GRANT SELECT ON other.users TO '{user}'@'{host}'"
        assert any(why.endswith(grant) for why in missing["problems"]), missing
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
    return try_with_database(typed, "--sql", sql)


def try_with_database(typed, *arguments: str) -> dict:
    done = operate("try", "--rules", typed.rules, "--database", typed.url, "--json", *arguments)
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
            # Both were said of an UPDATE of ignored columns: each row deletes keys, and nothing is deleted.
            assert any("each row of app.typed that it changes deletes" in note for note in shown["notes"]) == (
                not any("nothing is deleted" in note for note in shown["notes"])
            ), shown
            # `it's; DROP` has a space: it is no key.
            refused = any("refused as a key" in note for note in shown["notes"])
            assert refused == ("LIKE" in sql), shown
            typed.run(sql)
            assert keys_until(router, typed, "done")[0] == set(expected), sql
        check_row(typed, router)
    finally:
        daemon.stop()


def check_row(typed, router) -> None:
    """Compares what `try` shows of a row with what the invalidator deletes when the row is inserted."""
    is_postgres = typed.sql is POSTGRES
    row = {"id": 8, "name": "dan", "price": "-012.5", "at": "2026-11-22T09:05:00.500", "data": "00FF", "note": None}
    row["at"] += "" if is_postgres else "Z"
    shown = try_with_database(typed, "--row", "app.typed", json.dumps(row))
    assert "price:-12.50" in shown["keys"] and shown["notes"] == [], shown
    data = "'\\x00ff'" if is_postgres else "X'00ff'"
    typed.run(f"INSERT INTO app.typed VALUES (8, 'dan', -12.5, '2026-11-22 09:05:00.50', {data}, NULL)")
    assert keys_until(router, typed, "inserted")[0] == set(shown["keys"])
    for column, value, why in [
        ("price", "12.345", "a decimal with 2 digits after the point at most"),
        ("at", row["at"].replace(".500", ".123"), "with 2 digits of a fraction of a second at most"),
        ("data", "xx", "two hexadecimal digits"),
        ("id", "one", "an integer"),
    ]:
        given = json.dumps(row | {column: value})
        refused = operate("try", "--rules", typed.rules, "--database", typed.url, "--row", "app.typed", given)
        assert refused.returncode == 1 and f'column {column} is "{value}"; expected' in refused.stderr, refused
        assert why in refused.stderr, refused


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
