"""A client of the Rust library in a process of its own, which answers each line of its standard input by a line."""

import os
import select
import subprocess
import time

from processes import PROGRAMS, STOP_S

REPLY_S = 20.0


class LineClient:
    """One of the examples in `crates/client/examples`. Its calls wait for their replies for a bounded time."""

    def __init__(self, example: str, *arguments: object) -> None:
        command = [str(word) for word in (PROGRAMS / "examples" / example, *arguments)]
        self.running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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

    def statistics(self) -> dict[str, int]:
        """Its counters."""
        words = self.call("statistics").split()
        return {name: int(value) for name, value in (word.split("=") for word in words)}

    def stop(self) -> int:
        """Ends it; its exit code."""
        self.running.stdin.close()
        try:
            return self.running.wait(STOP_S)
        finally:
            self.running.kill()
            self.running.stdout.close()
