"""Servers for the clients of many languages: ours, and the memcached that says whether what is expected is true.

memcached 1.6.45 takes part where LOOKASIDE_MEMCACHED names it. Only ours is asked to check passwords: distributions
build memcached without the file of users that MEMCACHED_SASL_PWDB names.
"""

import os

from certificates import Authority
from processes import PROGRAMS, Process, accepts, free_port

MEMCACHED = os.environ.get("LOOKASIDE_MEMCACHED")
KINDS = ["lookaside", "memcached"] if MEMCACHED else ["lookaside"]
OPTIONS = ("-l", "127.0.0.1", "-m", "64", "-t", "2")
USER, PASSWORD = "ada", "secret"


class Endpoint(Process):
    """A server of one kind on a free port; `users` are its SASL users, `authority` signs its TLS certificate."""

    def __init__(self, kind: str, folder, users: str = "", authority: Authority | None = None) -> None:
        self.kind, self.port, self.folder = kind, free_port(), folder
        environment = dict(os.environ)
        command = [PROGRAMS / "lookaside-server" if kind == "lookaside" else MEMCACHED, "-p", self.port, *OPTIONS]
        if kind == "memcached" and os.geteuid() == 0:
            command += ["-u", "nobody"]
        if users:
            (folder / "users").write_text(users)
            environment["MEMCACHED_SASL_PWDB"] = str(folder / "users")
            command.append("-S")
        self.authority = authority
        if authority:
            certificate, key = authority.sign("server")
            # memcached reads them as the user that it switches to.
            for path in (folder, certificate, key):
                path.chmod(0o755)
            command += ["-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}"]
        super().__init__(kind, command, folder, env=environment)
        self.wait_ready(lambda: accepts(self.port))
