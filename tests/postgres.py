"""A PostgreSQL server of the test's own: fresh data directory, free port of 127.0.0.1, stopped by pid."""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psycopg
from processes import Process, eventually, free_port

USER = "postgres"
PASSWORD = "secret"


def program(name: str) -> str:
    """The newest installed version's; Debian keeps them out of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    assert found, f"{name} is missing: run `make install` (Debian package postgresql)"
    return str(found[-1])


class Postgres(Process):
    """A server with `wal_level=logical` and a database `app`. It does not run as root, so root becomes `postgres`."""

    def __init__(
        self, directory: Path, *settings: str, primary: "Postgres | None" = None, installed: Path | None = None
    ) -> None:
        """With `primary`: a standby of that server. With `installed`: the version in that folder, which has `bin`,
        `lib` and `share`; a standby of one begins with a copy of its files, for which it is restarted."""
        self.port = free_port()
        self.settings = settings
        # Another user must be able to reach the folder, and pytest's folders are private.
        self.home = Path("/tmp") / f"lookaside-postgres-{self.port}"
        self.home.mkdir(mode=0o700)
        password = self.home / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            shutil.chown(self.home, "postgres", "postgres")
            shutil.chown(password, "postgres", "postgres")
        if installed:
            # That user cannot read the folders of root, where it is.
            shutil.copytree(installed, self.home / "installed", symlinks=True)
        user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}

        def program_of_server(name: str) -> str:
            return str(self.home / "installed" / "bin" / name) if installed else program(name)

        data = str(self.home / "data")
        if primary is None:
            install = [
                program_of_server("initdb"), f"--username={USER}", "--auth=scram-sha-256", "--no-sync",
                "--encoding=UTF8", "--locale=C", f"--pwfile={password}", data,
            ]  # fmt: skip
        elif installed:
            Postgres.stop(primary)  # that of a derived class removes the files
            install = ["cp", "--archive", str(primary.home / "data"), data]
        else:
            source = f"host=127.0.0.1 port={primary.port} user={USER} password={PASSWORD}"
            install = [program("pg_basebackup"), "-d", source, "-D", data, "-R", "--checkpoint=fast", "--no-sync"]
        done = subprocess.run(install, capture_output=True, text=True, cwd="/tmp", **user)
        assert done.returncode == 0, f"{install[0]}: {done.stdout}{done.stderr}"
        if primary and installed:
            primary.restart()
            # A copy of the primary's slots would be none of this server's.
            for slot in (self.home / "data" / "pg_replslot").iterdir():
                shutil.rmtree(slot)
            (self.home / "data" / "standby.signal").touch()
            source = f"host=127.0.0.1 port={primary.port} user={USER} password={PASSWORD} dbname=postgres"
            # Unlike an argument, it can be changed later.
            with (self.home / "data" / "postgresql.auto.conf").open("a") as settings_file:
                settings_file.write(f"primary_conninfo = '{source}'\n")
        command = [
            program_of_server("postgres"), "-D", str(self.home / "data"), "-p", str(self.port),
            "-h", "127.0.0.1", "-k", "", "-F", "-c", "wal_level=logical", "-c", "shared_buffers=16MB",
            *[argument for setting in settings for argument in ("-c", setting)],
        ]  # fmt: skip
        super().__init__("postgres", command, directory, cwd="/tmp", **user)
        self.wait_ready(self.accepts, 60)
        if primary is None:
            with self.connect("postgres") as connection:
                connection.execute("CREATE DATABASE app")

    def accepts(self) -> bool:
        """Whether the server accepts connections."""
        try:
            self.connect("postgres").close()
            return True
        except psycopg.Error:
            return False

    def connect(self, database: str = "app") -> psycopg.Connection:
        """A connection, each statement a transaction of its own."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True
        )

    def recreate_database(self) -> None:
        """Leaves an empty database `app` and no replication slots."""
        with self.connect("postgres") as connection:

            def are_slots_dropped() -> bool:
                slots = connection.execute("SELECT slot_name FROM pg_replication_slots WHERE NOT active").fetchall()
                for (slot,) in slots:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
                return not connection.execute("SELECT FROM pg_replication_slots").fetchall()

            eventually(are_slots_dropped, "the slots of the last test are free")
            connection.execute("DROP DATABASE IF EXISTS app WITH (FORCE)")
            connection.execute("CREATE DATABASE app")

    def promote(self) -> None:
        """Makes a standby a primary."""
        with self.connect() as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)

    def kill(self) -> None:
        """SIGKILL for all processes of the server, and waits until they are gone."""
        pid = self.running.pid
        # While the first process is stopped it starts no further ones.
        self.freeze()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        super().kill()
        eventually(lambda: set(map(state_of, children)) <= {"Z"}, "the server's processes are gone")

    def stop(self) -> int | None:
        """A fast shutdown: SIGTERM would wait for the clients."""
        if self.running is not None and self.running.poll() is None:
            self.running.send_signal(signal.SIGINT)
        return super().stop()

    def restart(self) -> None:
        """Starts the server again, after `stop` or `kill`."""
        self.start()
        self.wait_ready(self.accepts, 60)

    def remove(self) -> None:
        """Removes its files, once it has stopped."""
        shutil.rmtree(self.home, ignore_errors=True)

    def url_at(self, port: int) -> str:
        """As `--source` takes it, by another port, which leads to the server's."""
        return f"postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/app"

    @property
    def url(self) -> str:
        """As `--source` and `--database` take it."""
        return self.url_at(self.port)


def state_of(pid: int | str) -> str:
    """The kernel's one-letter state of a process; Z if it is gone."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
