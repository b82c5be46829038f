"""A Rust client that reads servers directly, in a process of its own (`crates/client/examples/direct_client.rs`)."""

import os
import select
import signal
import subprocess
import time

from processes import PROGRAMS, STOP_S, eventually

REPLY_S = 20.0


class DirectClient:
    """One client. Its calls wait for their replies for a bounded time."""

    def __init__(self, configuration, routers: list[int], *options: str) -> None:
        program = PROGRAMS / "examples" / "direct_client"
        command = [program, *options, configuration, *(f"127.0.0.1:{port}" for port in routers)]
        self.running = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.received = b""

    def call(self, line: str) -> str:
        """The reply to one line."""
        self.running.stdin.write(line.encode() + b"\n")
        self.running.stdin.flush()
        deadline = time.monotonic() + REPLY_S
        while b"\n" not in self.received:
            readable, _, _ = select.select([self.running.stdout], [], [], deadline - time.monotonic())
            assert readable, f"no reply to {line!r} within {REPLY_S} s"
            piece = os.read(self.running.stdout.fileno(), 1 << 16)
            assert piece, f"the client ended with {self.running.poll()}"
            self.received += piece
        reply, _, self.received = self.received.partition(b"\n")
        return reply.decode()

    def get(self, key: str) -> str | None:
        """The value; None for a miss and for an error."""
        word, _, value = self.call(f"get {key}").partition(" ")
        return value if word == "hit" else None

    def is_permitted(self) -> bool:
        """Whether reads go to servers now."""
        return self.call("permitted") == "true"

    def wait_permitted(self) -> None:
        """Until reads go to servers."""
        eventually(self.is_permitted, "the client reads servers directly")

    def statistics(self) -> dict[str, int]:
        """Its counters."""
        words = self.call("statistics").split()
        return {name: int(value) for name, value in (word.split("=") for word in words)}

    def burst(self, count: int, keys: list[str]) -> dict[str, int]:
        """The outcomes of `count` gets of all keys at a time, and the milliseconds of the slowest."""
        words = self.call(f"burst {count} {' '.join(keys)}").split()
        return {name: int(value) for name, value in (word.split("=") for word in words)}

    def tasks(self) -> int:
        """How many run in its runtime."""
        return int(self.call("tasks"))

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.running.pid}/fd"))

    def freeze(self) -> None:
        """SIGSTOP."""
        self.running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.running.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Ends it; its exit code."""
        self.running.stdin.close()
        try:
            return self.running.wait(STOP_S)
        finally:
            self.running.kill()
            self.running.stdout.close()
