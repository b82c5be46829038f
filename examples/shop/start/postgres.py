"""A PostgreSQL of the shop's own, in a temporary folder."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from .environment import CannotStart, free_port
from .processes import Process

START_S = 60
#: PostgreSQL does not run as root. This is the user that Debian's package makes.
USER = "postgres"


def find_program(name: str) -> str:
    """The path of one of PostgreSQL's programs, of the newest version. Debian keeps them out of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        raise CannotStart(f"{name} is missing: install PostgreSQL (Debian: postgresql), or name a server by --database")
    return path


class Postgres(Process):
    """It listens on a free port of 127.0.0.1, and writes the log that the invalidator reads."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        initdb, postgres, is_ready = map(find_program, ["initdb", "postgres", "pg_isready"])
        home = folder / "postgres"
        home.mkdir()
        user = {}
        if os.geteuid() == 0:
            user = {"user": USER, "group": USER}
            try:
                shutil.chown(home, USER, USER)
            except LookupError as why:
                raise CannotStart(f"PostgreSQL does not run as root, and there is no user {USER}") from why
        data = home / "data"
        command = [initdb, "--username=shop", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", data]
        created = subprocess.run(command, capture_output=True, text=True, cwd=home, **user)
        if created.returncode != 0:
            raise CannotStart(f"{initdb} failed: {created.stdout}{created.stderr}")
        # -F: its data are gone after the end anyway.
        settings = ["-h", "127.0.0.1", "-p", self.port, "-k", "", "-F", "-c", "wal_level=logical"]
        # A fast shutdown: it does not wait for clients.
        super().__init__(
            "postgres", [postgres, "-D", data, *settings], folder, stop_signal=signal.SIGINT, cwd=home, **user
        )
        command = [is_ready, "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        try:
            self.wait_ready(lambda: subprocess.run(command).returncode == 0, START_S)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """As `lookaside up --database` takes it."""
        return f"postgres://shop@127.0.0.1:{self.port}/postgres"
