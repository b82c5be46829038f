"""A stand-in for a cluster's router that records every delete and every flush, and stores nothing."""

import socketserver
import threading

from processes import free_port

FLUSH_KEY = "__mcrouter__.flush_prefix("


class RecordingRouter:
    """Answers memcached's text protocol on a free port. `name` and `ports` are those of a cluster."""

    def __init__(self, name: str = "one") -> None:
        self.name = name
        self.ports = [free_port()]
        self.lock = threading.Lock()
        self.deleted: list[str] = []
        # The prefixes of the keys whose pools were flushed: an empty one for the whole cluster.
        self.flushed: list[str] = []
        router = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    self.wfile.write(router.reply(line.decode().split()))

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self.listener = Listener(("127.0.0.1", self.ports[0]), Connection)
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def reply(self, words: list[str]) -> bytes:
        """The reply to a command."""
        with self.lock:
            match words:
                case ["delete", key, *_]:
                    self.deleted.append(key)
                    return b"DELETED\r\n"
                case ["flush_all", *_]:
                    self.flushed.append("")
                    return b"OK\r\n"
                case ["get", key] if key.startswith(FLUSH_KEY):
                    self.flushed.append(key.removeprefix(FLUSH_KEY).removesuffix(")"))
                    return f"VALUE {key} 0 9\r\nflushed 1\r\nEND\r\n".encode()
                case ["get" | "gets", *_]:
                    return b"END\r\n"
                case ["version"]:
                    return b"VERSION 0\r\n"
                case _:
                    return b"ERROR\r\n"

    @property
    def flushes(self) -> int:
        """How often the whole cluster was flushed since the last call."""
        return self.flushed.count("")

    def take(self) -> tuple[set[str], int]:
        """The keys and the number of flushes of the whole cluster since the last call."""
        keys, flushed = self.take_flushed()
        return keys, flushed.count("")

    def take_flushed(self) -> tuple[set[str], list[str]]:
        """The keys and the prefixes of flushes since the last call."""
        with self.lock:
            taken = set(self.deleted), sorted(self.flushed)
            self.deleted, self.flushed = [], []
            return taken

    def has(self, key: str) -> bool:
        """Whether this key has been deleted since the last `take`."""
        with self.lock:
            return key in self.deleted

    def stop(self) -> None:
        """Closes the port."""
        self.listener.shutdown()
        self.listener.server_close()
