"""Fixtures of the end-to-end tests: a region of real processes, and a MariaDB."""

import pytest
from mariadb import MariaDb
from processes import Cluster, Server

# Their assertions are reported in full, as those of tests are.
pytest.register_assert_rewrite("load", "tls", "upgrade")


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


@pytest.fixture
def clusters(tmp_path):
    """Two clusters."""
    clusters = [Cluster(name, tmp_path) for name in ("one", "two")]
    yield clusters
    for cluster in clusters:
        cluster.stop()


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
