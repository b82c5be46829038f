"""The rows and values that `lookaside audit` reads: of each database, by TLS, and in the formats of clients."""

import pytest
from audit import CREATE, ROWS, Audit, database_fixture, fill_users, sqlite_audit  # noqa: F401 - a fixture
from certificates import Authority
from lookaside import Client
from mariadb import PASSWORD, MariaDb
from processes import connect
from pymemcache.serde import compressed_serde, pickle_serde


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_servers_of_databases_are_read(kind, cluster, tmp_path, request):
    server = request.getfixturevalue(kind)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.executemany("INSERT INTO users VALUES (%s, %s, 7)", ROWS)
        audit = Audit(server.url, tmp_path, cluster)
        fill_users(cluster)
        assert audit.run() == (set(), {"fresh": 6})
        cursor.execute("UPDATE users SET name = 'Ada' WHERE id = 1")
        found, counts = audit.run("--repair")
        assert found == {("stale", "one", "user:1"), ("stale", "one", "page:1")} and counts["repaired"] == 2
        assert audit.run() == (set(), {"fresh": 4, "missing": 2})


@pytest.mark.timeout(300)
def test_a_database_is_read_by_tls(cluster, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    own, own_key = authority.sign("audit")
    (tmp_path / "db").mkdir()
    options = (f"--ssl-cert={certificate}", f"--ssl-key={key}", f"--ssl-ca={authority.certificate}")
    # The certificate names 127.0.0.1 and not 127.0.0.2.
    server = MariaDb(tmp_path / "db", host="127.0.0.2", options=options)
    try:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(CREATE)
            cursor.executemany("INSERT INTO users VALUES (%s, %s, 7)", ROWS)
            cursor.execute(f"CREATE USER secured@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE SSL")
            cursor.execute(f"CREATE USER certified@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE X509")
            cursor.execute("GRANT SELECT ON app.* TO secured@'%', certified@'%'")
        fill_users(cluster)
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other")

        def audit(user: str, parameters: str, host: str = "127.0.0.1") -> Audit:
            return Audit(f"mariadb://{user}:{PASSWORD}@{host}:{server.port}/app{parameters}", tmp_path, cluster)

        def refusal(tried: Audit) -> str:
            done = tried.execute()
            assert done.returncode == 1 and not done.stdout, done
            return done.stderr

        by_name = f"?ssl-mode=VERIFY_IDENTITY&ssl-ca={authority.certificate}"
        by_authority = f"?ssl-mode=VERIFY_CA&ssl-ca={authority.certificate}"
        assert audit("secured", by_name).run() == (set(), {"fresh": 6})
        assert audit("certified", f"{by_name}&ssl-cert={own}&ssl-key={own_key}").run() == (set(), {"fresh": 6})
        assert "Access denied" in refusal(audit("secured", ""))
        assert "Access denied" in refusal(audit("certified", by_name))
        assert "certificate" in refusal(audit("secured", by_name, "127.0.0.2"))
        unknown = by_name.replace(str(authority.certificate), str(stranger.certificate))
        assert "certificate" in refusal(audit("secured", unknown))
        assert "VERIFY_IDENTITY" in refusal(audit("secured", by_authority))
        assert "ssl-mode" in refusal(audit("secured", f"?ssl-mode=REQUIRED&ssl-ca={authority.certificate}"))
    finally:
        server.stop()


def test_values_of_the_projects_clients_and_of_pythons_are_read(database, cluster, tmp_path):
    # Each of them was unreadable, or stale without being wrong.
    audit = sqlite_audit(tmp_path, cluster)
    text, note = "the same words again. " * 50, "grün " * 100
    database.execute("CREATE TABLE notes (id INT PRIMARY KEY, body TEXT, visits INT)")
    database.executemany("INSERT INTO notes VALUES (?, ?, 7)", [(number, text) for number in range(6)] + [(9, note)])
    audit.write_queries("""
[[query]]
key = "text:{id}"
sql = "SELECT body FROM notes WHERE id = {id}"

[[query]]
key = "visits:{id}"
sql = "SELECT visits FROM notes WHERE id = {id}"

[[query]]
key = "json:{id}"
sql = "SELECT id, body, visits FROM notes WHERE id = {id}"
value = "json"

[[query]]
key = "raw:{id}"
sql = "SELECT body FROM notes WHERE id = {id}"
flags = "ignored"
""")
    keys: list[str] = []

    def compare(code: int = 0) -> tuple[set, dict]:
        (tmp_path / "keys").write_text("\n".join(keys))
        return audit.run("--keys", str(tmp_path / "keys"), code=code)

    addresses = [f"127.0.0.1:{cluster.port}"]
    for number, compression in enumerate((None, "zlib", "zstd", "lz4")):
        options = {"compression": compression} if compression else {}
        with Client(addresses, **options) as client:
            document = {"id": number, "body": text, "visits": 7}
            written = {f"text:{number}": text, f"visits:{number}": 7, f"json:{number}": document}
            for key, value in written.items():
                client.set(key, value)
            keys += written
    stored = [connect(server.port).get("text:2") for server in cluster.servers]
    assert 0 < max(len(value or b"") for value in stored) < len(text) / 5, "it is compressed"
    # pymemcache's own compression, and its numbers.
    memcache = cluster.client()
    for serde, key, value in ((compressed_serde, "text:9", note), (pickle_serde, "visits:9", 7)):
        data, flag = serde.serialize(key, value)
        assert memcache.set(key, data, flags=flag)
        keys.append(key)
    found, counts = compare()
    assert found == set() and counts == {"fresh": len(keys)}
    # The mark of an absent row, beside none; a pickle; flags of another client.
    with Client(addresses) as client:
        client.set("text:77", None)
    with Client(addresses, pickle=True) as client:
        client.set("json:4", {"id": 4, "body": text, "visits": 7})
    memcache.set("text:5", text, flags=32)
    memcache.set("raw:5", text, flags=32)
    keys += ["text:77", "json:4", "text:5", "raw:5"]
    found, counts = compare()
    assert found == set() and counts == {"fresh": len(keys) - 2, "unreadable": 2}
    # And what is wrong is found, in each format.
    database.execute("UPDATE notes SET body = 'another', visits = 8 WHERE id IN (1, 2)")
    database.execute("INSERT INTO notes VALUES (77, 'now there', 1)")
    found, _ = compare(code=1)
    changed = [f"{kind}:{number}" for kind in ("text", "visits", "json") for number in (1, 2)]
    assert found == {("stale", "one", key) for key in [*changed, "text:77"]}
