"""Processes that end with this one, whatever ends it."""

import ctypes
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .environment import CannotStart

STOP_S = 15
PR_SET_PDEATHSIG = 1


class Process:
    """A process with a log file. It is in a session of its own: Ctrl-C reaches `run` alone, which stops it in order."""

    def __init__(
        self, name: str, command: list[Any], log_dir: Path, *, stop_signal: int = signal.SIGTERM, **options: Any
    ) -> None:
        self.name = name
        self.log_path = log_dir / f"{name}.log"
        self.stop_signal = stop_signal
        libc = ctypes.CDLL(None)
        with self.log_path.open("ab") as log:
            self._running = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, stop_signal),
                **options,
            )

    def log(self) -> str:
        """Its output so far."""
        return self.log_path.read_text(errors="replace")

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._running.poll() is not None

    def wait_ready(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Waits for `is_ready()`; fails when the process ends before that, or does not get there in time."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            if self.has_ended():
                raise CannotStart(f"{self.name} ended at the start:\n{self.log().strip()}")
            if time.monotonic() > deadline:
                raise CannotStart(f"{self.name} is not ready after {seconds} s:\n{self.log().strip()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends it, and waits for that."""
        if not self.has_ended():
            self._running.send_signal(self.stop_signal)
            try:
                self._running.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._running.kill()
                self._running.wait()
