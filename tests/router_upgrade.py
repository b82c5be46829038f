"""Routers that take over from each other, and a client whose deletes must not be lost meanwhile."""

import contextlib
import json
import random
import threading
from pathlib import Path

from processes import PROGRAMS, STOP_S, Server, eventually, free_port, frozen, stats
from upgrade import (
    Chain,
    Connection,
)

ROUTER = PROGRAMS / "lookaside-router"


KEYS = 4_000


class RouterChain(Chain):
    """Routers and their two servers. Keys that begin with `cut:` are at the server that tests make unreachable."""

    program = ROUTER
    # As in mcrouter: a restart may help.
    cannot_start = 2

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.sound, self.cut = Server("sound", folder), Server("cut", folder)
        configuration = {
            "pools": {
                "sound": {"servers": [f"127.0.0.1:{self.sound.port}"]},
                # The other server is never cut off, but on a loaded machine it may take longer than this.
                "cut": {"servers": [f"127.0.0.1:{self.cut.port}"], "server_timeout": 200},
            },
            "route": {
                "type": "PrefixSelectorRoute",
                "policies": {"cut:": "PoolRoute|cut"},
                "wildcard": "PoolRoute|sound",
            },
        }
        self.path = folder / "router.json"
        self.path.write_text(json.dumps(configuration))
        self.port, self.spool = free_port(), folder / "spool"
        # Of the routers that delete and read; a peer's, if it is one.
        self.delete_port = self.read_port = self.port
        # Beside a Unix socket only an address with its own port is opened.
        listen = ["-l", f"127.0.0.1:{self.port}"] if "-s" in arguments else ["-p", self.port]
        options = [
            *listen, "-f", self.path, "--num-proxies", "2",
            "--server-timeout", "5000", "--probe-timeout-initial", "50", "--spool", self.spool, *arguments,
        ]  # fmt: skip
        super().__init__(folder, options)

    def wait_for_visitor(self) -> None:
        """Waits until a successor has connected to the upgrade socket of a stopped router."""
        eventually(lambda: Path("/proc/net/unix").read_text().count(f"{self.gate}\n") == 2, "it has connected")

    def connect(self) -> Connection:
        """A client."""
        return Connection(("127.0.0.1", self.port))

    def behind(self) -> int:
        """The number of servers with a backlog."""
        return int(stats(self.delete_port)["spool_servers_fenced"])

    def stop(self) -> None:
        """Ends all, the servers too."""
        super().stop()
        self.sound.stop()
        self.cut.stop()


class Deleter(threading.Thread):
    """Deletes keys at a server that is cut off, and looks whether one that was acknowledged is ever read again."""

    def __init__(self, chain: RouterChain, may_be_cut_off: bool = False) -> None:
        super().__init__()
        self.chain, self.may_be_cut_off = chain, may_be_cut_off
        self.acknowledged: list[bytes] = []
        self.attempts = 0
        self.is_over = threading.Event()
        self.wrong: list[Exception] = []

    def run(self) -> None:
        while not self.is_over.is_set() and not self.wrong:
            try:
                ports = self.chain.delete_port, self.chain.read_port
                writer, reader = (Connection(("127.0.0.1", port)) for port in ports)
                with writer, reader:
                    while not self.is_over.is_set():
                        self.delete_some(writer)
                        self.look(reader)
            except OSError as error:
                if not self.may_be_cut_off:
                    self.wrong.append(error)
            except AssertionError as error:
                self.wrong.append(error)

    def delete_some(self, writer: Connection) -> None:
        """A few at once; those that are acknowledged must be gone."""
        keys = [b"cut:%d" % (self.attempts + number) for number in range(3)]
        self.attempts += len(keys)
        writer.send(b"".join(b"delete %b\r\n" % key for key in keys))
        for key in keys:
            answer = writer.line()
            if answer in (b"NOT_FOUND\r\n", b"DELETED\r\n"):
                self.acknowledged.append(key)
            else:
                assert self.may_be_cut_off, answer

    def look(self, reader: Connection) -> None:
        """Reads a key whose delete was acknowledged."""
        key = random.choice(self.acknowledged or [b"cut:none"])
        reader.send(b"get %b\r\n" % key)
        answer = reader.line()
        assert not answer.startswith(b"VALUE"), f"{key} was deleted and is read: {answer}"


def fill(server: Server) -> None:
    """Stores the keys to delete and the keys to keep, directly at the server."""
    with Connection(("127.0.0.1", server.port)) as client:
        for number in range(KEYS):
            for key in (b"cut:%d" % number, b"cut:kept:%d" % number):
                client.send(b"set %b 0 0 3 noreply\r\nold\r\n" % key)
        assert client.ask(b"version\r\n").startswith(b"VERSION")


@contextlib.contextmanager
def deletes(chain: RouterChain, may_be_cut_off: bool = False):
    """Deletes without end, while their server is cut off; when it is back, all of them are done and nothing else is."""
    fill(chain.cut)
    deleter = Deleter(chain, may_be_cut_off)
    try:
        with frozen(chain.cut):
            deleter.start()
            eventually(lambda: deleter.wrong or len(deleter.acknowledged) > 20, "deletes are kept")
            yield deleter
        # The deleter goes on reading: the server replies again but has not executed all deletes yet.
        eventually(lambda: deleter.wrong or chain.behind() == 0, "all deletes are done")
    finally:
        deleter.is_over.set()
        deleter.join(STOP_S)
    assert not deleter.wrong, deleter.wrong
    with chain.connect() as client:
        eventually(lambda: client.ask(b"get cut:none\r\n") == b"END\r\n", "the server is read")
        for key in deleter.acknowledged:
            assert client.ask(b"get %b\r\n" % key) == b"END\r\n", key
        client.send(b"get cut:kept:%d\r\n" % (len(deleter.acknowledged) % KEYS))
        assert client.line().startswith(b"VALUE"), "no value was flushed without a delete"
