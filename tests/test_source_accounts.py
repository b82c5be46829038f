"""The accounts of the invalidator that docs/operating/invalidation.md prints for each database: they suffice, and each
of their privileges is needed."""

import re

import pytest
from cached_keys import fill, gone
from invalidator_pair import Member, url_of
from operating_page import OperatingPage
from processes import eventually
from replicated import SERVERS, MariadbServer
from row_rule_clients import operate
from tools import need

SQL = dict(zip(SERVERS, OperatingPage("invalidation").blocks("## By database", "sql"), strict=True))
GRANT = re.compile(r"GRANT (.+) ON (.+) TO (\S+)")
COMPLAINT = re.compile(r"grant|privilege|permission|not permitted", re.IGNORECASE)
CREATE = ("CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(40))", "INSERT INTO users VALUES (1, 'ada')")


class DefaultMariadb(MariadbServer):
    """As it is by default, it would not log what it applies as a replica. So the invalidator asks whether it is one."""

    arguments = (*MariadbServer.arguments, "--log-slave-updates=OFF")


@pytest.fixture(params=SERVERS)
def database(request, tmp_path):
    """A server for one test with a table that has a rule, and an account as the page prints it."""
    if request.param == "mysql":
        need("mysql")
    server = (SERVERS | {"mariadb": DefaultMariadb})[request.param](tmp_path)
    try:
        if server.kind == "postgres":
            server.run("CREATE DATABASE shop", "REVOKE CONNECT ON DATABASE shop FROM PUBLIC")
        else:
            server.run("CREATE DATABASE app", schema=None)
        execute(server, *CREATE, *filter(None, map(str.strip, SQL[server.kind].split(";"))))
        yield server
    finally:
        server.stop()


@pytest.fixture
def rules(database, tmp_path):
    """A rule file, which is set up."""
    rules = tmp_path / "rules.toml"
    schema = "public" if database.kind == "postgres" else "app"
    rules.write_text(f'[[rule]]\ntable = "{schema}.users"\nkeys = ["user:{{id}}"]\n')
    if database.kind == "postgres":
        done = operate("setup", "--rules", rules, "--database", database.url.replace("/app", "/shop"))
        assert done.returncode == 0, done.stderr
    return rules


def execute(server, *statements: str) -> None:
    """Runs statements as a superuser, in the database that the page names."""
    if server.kind != "postgres":
        server.run(*statements)
        return
    with server.connect("shop") as connection:
        for statement in statements:
            connection.execute(statement)


def removals(kind: str, block: str) -> list[tuple[str, str, str]]:
    """For each privilege of the account what a log has that misses it, the statement that takes it away, and the one
    that gives it back."""
    found = []
    if kind == "postgres":
        for name, logged in (("LOGIN", "not permitted to log in"), ("REPLICATION", '"lookaside" REPLICATION')):
            found.append((logged, f"ALTER ROLE lookaside NO{name}", f"ALTER ROLE lookaside {name}"))
    for names, place, account in GRANT.findall(block):
        for name in names.split(", "):
            found.append((name, f"REVOKE {name} ON {place} FROM {account}", f"GRANT {name} ON {place} TO {account}"))
    return found


def test_an_account_of_the_page_has_the_privileges_that_the_invalidator_needs(database, rules, cluster, tmp_path):
    url = url_of(database)
    if database.kind == "postgres":
        url = url.replace("/app", "/shop")
    arguments = ("--rules", str(rules))
    invalidator = Member("allowed", url, [cluster], tmp_path, *arguments)
    try:
        eventually(invalidator.is_active, "it reads the log")
        fill([cluster], ["user:1"])
        execute(database, "UPDATE users SET name = 'Ada' WHERE id = 1")
        gone([cluster], ["user:1"])
        assert not COMPLAINT.search(invalidator.log()), invalidator.log()
    finally:
        invalidator.stop()

    found = removals(database.kind, SQL[database.kind])
    assert len(found) == {"mariadb": 4, "mysql": 4, "postgres": 3}[database.kind]
    for number, (logged, take, give) in enumerate(found):
        execute(database, take)
        invalidator = Member(f"without-{number}", url, [cluster], tmp_path, *arguments)
        try:
            eventually(lambda: logged in invalidator.log(), f"{logged!r} is logged without it")  # noqa: B023
        finally:
            invalidator.stop()
        execute(database, give)
