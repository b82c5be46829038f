"""A test's own etcd, used through its JSON gateway."""

import base64
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from certificates import Authority
from processes import Process, free_port


def encoded(text: str) -> str:
    """Keys and values in the gateway's encoding."""
    return base64.b64encode(text.encode()).decode()


class Etcd(Process):
    """One member, a cluster by itself."""

    def __init__(
        self,
        folder: Path,
        authority: Authority | None = None,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is in front of the command, and may run it in another network."""
        program = shutil.which("etcd")
        assert program, "etcd is missing: make install"
        self.host, self.port, peer_port = host, free_port(), free_port()
        self.url = f"http{'s' if authority else ''}://{host}:{self.port}"
        self.context, secured = None, []
        if authority:
            # With users, etcd's gateway refuses clients whose certificate has a common name.
            certificate, key = authority.sign("etcd", "O")
            # Clients must present a certificate, too.
            self.context = authority.context(certificate, key)
            secured = ["--cert-file", certificate, "--key-file", key, "--trusted-ca-file", authority.certificate]
            secured.append("--client-cert-auth")
        peer = f"http://127.0.0.1:{peer_port}"
        command = [
            *prefix, program, "--data-dir", folder / "etcd", "--listen-client-urls", self.url,
            "--advertise-client-urls", self.url, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", *secured,
        ]  # fmt: skip
        super().__init__("etcd", command, folder)
        self.wait_ready(self.answers)

    def answers(self) -> bool:
        """Whether it takes requests."""
        try:
            self.ask("/v3/kv/range", {"key": encoded("a")})
        except (OSError, urllib.error.HTTPError):
            return False
        return True

    def ask(self, path: str, body: dict, token: str | None = None) -> dict:
        """One request."""
        headers = {"Authorization": token} if token else {}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=5, context=self.context) as answer:
            return json.load(answer)

    def put(self, key: str, value: str) -> int:
        """Stores a value; the revision since which it is there."""
        answer = self.ask("/v3/kv/put", {"key": encoded(key), "value": encoded(value)})
        return int(answer["header"]["revision"])

    def delete(self, key: str) -> None:
        """Removes a key."""
        self.ask("/v3/kv/deleterange", {"key": encoded(key)})

    def compact(self, revision: int) -> None:
        """Discards the history before a revision."""
        self.ask("/v3/kv/compaction", {"revision": str(revision), "physical": True})

    def restart(self) -> None:
        """Starts it again with what it had."""
        self.start()
        self.wait_ready(self.answers)
