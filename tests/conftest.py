"""Fixtures of the end-to-end tests: a region of real processes, and databases."""

import contextlib

import pytest
from mariadb import MariaDb
from postgres import Postgres
from processes import Cluster, Server
from replicated import SERVERS, MysqlServer
from tools import need

# Their assertions are reported in full, as those of tests are.
pytest.register_assert_rewrite(
    "audit",
    "invalidator_pair",
    "invalidator_region",
    "load",
    "region_pair",
    "regional_users",
    "router_upgrade",
    "row_rule_clients",
    "tls",
    "upgrade",
)


@pytest.fixture
def root():
    """The tests run as root, which may become another user."""
    need("root")


@pytest.fixture
def server(tmp_path):
    """One server on a free port."""
    server = Server("server", tmp_path)
    yield server
    server.stop()


@pytest.fixture
def servers(tmp_path):
    """Three servers."""
    servers = [Server(f"server-{index}", tmp_path) for index in range(3)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def cluster(tmp_path):
    """One cluster."""
    cluster = Cluster("one", tmp_path)
    yield cluster
    cluster.stop()


@contextlib.contextmanager
def running_clusters(folder, *router_arguments):
    """Two clusters."""
    clusters = []
    try:
        clusters += [Cluster(name, folder, router_arguments) for name in ("one", "two")]
        yield clusters
    finally:
        for cluster in clusters:
            cluster.stop()


@pytest.fixture
def clusters(tmp_path):
    """Two clusters."""
    with running_clusters(tmp_path) as clusters:
        yield clusters


@pytest.fixture
def flushable_clusters(tmp_path):
    """Two clusters that may be flushed."""
    with running_clusters(tmp_path, "--enable-flush-cmd") as clusters:
        yield clusters


@pytest.fixture
def chain(tmp_path):
    """Servers with a region, of which each takes over from the one before."""
    from upgrade import ServerChain  # after its registration above

    chain = ServerChain(tmp_path)
    yield chain
    chain.stop()


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory):
    """One MariaDB for all tests: starting one takes seconds."""
    database = MariaDb(tmp_path_factory.mktemp("mariadb"))
    yield database
    database.stop()


@pytest.fixture
def mariadb(mariadb_server):
    """MariaDB with an empty schema `app`."""
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS app")
        cursor.execute("CREATE DATABASE app")
    return mariadb_server


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory):
    """One MySQL for all tests, if it has been fetched."""
    need("mysql")
    database = MysqlServer(tmp_path_factory.mktemp("mysql"))
    yield database
    database.stop()


@pytest.fixture
def mysql(mysql_server):
    """MySQL with an empty schema `app`."""
    mysql_server.run("DROP DATABASE IF EXISTS app", "CREATE DATABASE app", schema=None)
    return mysql_server


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory):
    """One PostgreSQL for all tests."""
    database = Postgres(tmp_path_factory.mktemp("postgres"))
    yield database
    database.stop()
    database.remove()


@pytest.fixture
def postgres(postgres_server):
    """PostgreSQL with an empty database `app` and no replication slots."""
    postgres_server.recreate_database()
    return postgres_server


@pytest.fixture(scope="module", params=SERVERS)
def kind(request):
    """The class of a database's servers."""
    if request.param == "mysql":
        need("mysql")
    return SERVERS[request.param]


@pytest.fixture(params=SERVERS)
def own_database(request, tmp_path):
    """A server for one test, which may kill it; of each kind."""
    if request.param == "mysql":
        need("mysql")
    database = SERVERS[request.param](tmp_path)
    yield database
    database.stop()


@pytest.fixture
def pair_region(own_database, flushable_clusters, tmp_path, request):
    """A region for several invalidators, without one yet. What takeovers took is in the summary of the run."""
    from invalidator_pair import PairRegion  # after its registration above

    def record(text: str) -> None:
        name = request.node.name.removeprefix("test_")
        request.node.user_properties.append(("recovery", f"{name}: {text}"))

    region = PairRegion(own_database, flushable_clusters, tmp_path, record)
    yield region
    region.stop()


def pytest_terminal_summary(terminalreporter):
    """How long recoveries took."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "recovery":
                terminalreporter.write_line(value)
