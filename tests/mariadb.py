"""A MariaDB server of the test's own: fresh data directory, free port of 127.0.0.1, stopped by pid."""

import getpass
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pymysql
from processes import Process, free_port

USER = "lookaside"
PASSWORD = "secret"
LOCAL = "127.0.0.1"

# The kernel has few AIO contexts for all servers on a machine together.
NO_NATIVE_AIO = "--innodb-use-native-aio=OFF"


class MariaDb(Process):
    """A server with a row-format binlog, a schema `app`, and a user with the right to read the log."""

    def __init__(
        self,
        directory: Path,
        host: str = LOCAL,
        port: int | None = None,
        options: tuple[str, ...] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is in front of the command, and may run it in another network."""
        self.host = host
        assert shutil.which("mariadbd"), "mariadbd is missing: run `make install` (Debian package mariadb-server)"
        self.port = port or free_port()
        self.socket = f"/tmp/lookaside-{self.port}.sock"  # a socket's path may have 107 bytes
        data = directory / "data"
        account = getpass.getuser()
        # A server that starts removes the temporary tables of all in its folder.
        temporary = directory / "tmp"
        temporary.mkdir()
        environment = {**os.environ, "TMPDIR": str(temporary)}
        installed = subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={account}", "--skip-test-db",
             "--auth-root-authentication-method=normal", NO_NATIVE_AIO],
            capture_output=True, text=True, env=environment,
        )  # fmt: skip
        assert installed.returncode == 0, f"mariadb-install-db: {installed.stdout}{installed.stderr}"
        command = [
            *prefix, "mariadbd", "--no-defaults", f"--datadir={data}", f"--user={account}", f"--socket={self.socket}",
            f"--port={self.port}", f"--bind-address={','.join({LOCAL, host})}", "--log-bin=binlog",
            "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--gtid-strict-mode=ON", "--sync-binlog=1",
            "--server-id=1", "--innodb-buffer-pool-size=64M", "--skip-name-resolve", NO_NATIVE_AIO, *options,
        ]  # fmt: skip
        super().__init__("mariadb", command, directory, env=environment)
        self.wait_ready(self.accepts, 60)
        with self.connect("root", "", None) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE app")
            cursor.execute(f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'")
            cursor.execute(f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION")

    def accepts(self) -> bool:
        """Whether the server accepts connections."""
        try:
            self.connect("root", "", None).close()
            return True
        except pymysql.MySQLError:
            return False

    def connect(self, user: str = USER, password: str = PASSWORD, schema: str | None = "app"):
        """A PyMySQL connection. Only from its own machine does the server let in root: that is the socket, since the
        server may be in another network."""
        where = {"unix_socket": self.socket} if user == "root" else {"host": self.host, "port": self.port}
        return pymysql.connect(user=user, password=password, database=schema, autocommit=True, **where)

    def shell(self, sql: str) -> None:
        """Runs SQL in the `mariadb` client, which leaves comments in place when asked to."""
        subprocess.run(
            ["mariadb", "--no-defaults", "--comments", "--protocol=tcp", f"--host={LOCAL}", f"--port={self.port}",
             f"--user={USER}", f"--password={PASSWORD}", "app", "--execute", sql],
            check=True,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """As `--source` and `--database` take it."""
        return f"mariadb://{USER}:{PASSWORD}@{self.host}:{self.port}/app"
