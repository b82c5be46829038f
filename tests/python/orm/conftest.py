"""The packages in `python/`, and databases with what the invalidator reads keys from."""

import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from journal import JOURNAL
from mariadb import PASSWORD as MARIADB_PASSWORD
from mariadb import USER as MARIADB_USER
from postgres import PASSWORD, USER
from processes import PROGRAMS, ROOT, Invalidator

sys.path.insert(0, str(ROOT / "python"))

OUTBOX = "CREATE TABLE lookaside_outbox (`key` VARBINARY(250) NOT NULL) ENGINE=InnoDB"
KINDS = ("postgres", "mariadb", "sqlite")


@dataclass
class Database:
    """A database, as the ORMs and the invalidator reach it."""

    kind: str
    # As `--source` takes it.
    source: str
    # As `sqlalchemy.create_engine` takes it.
    url: str
    # As Django's DATABASES has it.
    django: dict = field(default_factory=dict)


def prepare(kind: str, request, folder: Path) -> Database:
    """An empty database of a kind, with an outbox or a journal."""
    match kind:
        case "postgres":
            server = request.getfixturevalue("postgres")
            command = [PROGRAMS / "lookaside", "invalidator", "setup", "--database", server.url]
            subprocess.run(command, check=True, capture_output=True)
            login = {"USER": USER, "PASSWORD": PASSWORD, "HOST": "127.0.0.1", "PORT": server.port, "NAME": "app"}
            url = f"postgresql+psycopg://{USER}:{PASSWORD}@127.0.0.1:{server.port}/app"
            return Database(kind, server.url, url, {"ENGINE": "django.db.backends.postgresql", **login})
        case "mariadb":
            server = request.getfixturevalue("mariadb")
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(OUTBOX)
            login = {"USER": MARIADB_USER, "PASSWORD": MARIADB_PASSWORD, "HOST": "127.0.0.1", "PORT": server.port}
            url = f"mariadb+pymysql://{MARIADB_USER}:{MARIADB_PASSWORD}@127.0.0.1:{server.port}/app"
            return Database(kind, server.url, url, {"ENGINE": "django.db.backends.mysql", "NAME": "app", **login})
    path = folder / "app.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(JOURNAL)
    connection.close()
    return Database(
        kind, f"sqlite://{path}", f"sqlite:///{path}", {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
    )


@pytest.fixture(params=KINDS)
def database(request, tmp_path):
    """Each kind of database."""
    return prepare(request.param, request, tmp_path)


@pytest.fixture
def journal(request, tmp_path):
    """A SQLite database: most tests need no server."""
    return prepare("sqlite", request, tmp_path)


@pytest.fixture
def invalidator(database, cluster, tmp_path):
    """The invalidator between the database and a cluster."""
    daemon = Invalidator(database.source, [cluster], tmp_path / "state", tmp_path)
    yield daemon
    daemon.stop()
