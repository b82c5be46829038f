"""A stand-in for a cluster's router that records every delete and every flush, and stores nothing."""

import socketserver
import threading

from processes import free_port


class RecordingRouter:
    """Answers memcached's text protocol on a free port. `name` and `ports` are those of a cluster."""

    def __init__(self, name: str = "one") -> None:
        self.name = name
        self.ports = [free_port()]
        self.lock = threading.Lock()
        self.deleted: list[str] = []
        self.flushes = 0
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
                    self.flushes += 1
                    return b"OK\r\n"
                case ["get" | "gets", *_]:
                    return b"END\r\n"
                case ["version"]:
                    return b"VERSION 0\r\n"
                case _:
                    return b"ERROR\r\n"

    def take(self) -> tuple[set[str], int]:
        """The keys and the number of flushes since the last call."""
        with self.lock:
            taken = set(self.deleted), self.flushes
            self.deleted, self.flushes = [], 0
            return taken

    def has(self, key: str) -> bool:
        """Whether this key has been deleted since the last `take`."""
        with self.lock:
            return key in self.deleted

    def stop(self) -> None:
        """Closes the port."""
        self.listener.shutdown()
        self.listener.server_close()
