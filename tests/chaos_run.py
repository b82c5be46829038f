"""The fault injector, `python -m chaos`, as a test runs it."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

from chaos.checker import KINDS
from processes import ROOT

RUN_S = 80.0
SEED = 100
ONE_CLUSTER = ("--clusters", "1")


class Run:
    """The program in a process of its own."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.json_path = folder / f"{name}.json"
        command = [sys.executable, "-m", "chaos", "--seed", str(SEED), "--json", self.json_path, *options]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def wait(self) -> tuple[int, str, dict]:
        """Exit code, output and figures."""
        try:
            output, _ = self.process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            # It stops what it has started.
            self.process.send_signal(signal.SIGTERM)
            output, _ = self.process.communicate()
        figures = json.loads(self.json_path.read_text()) if self.json_path.exists() else {}
        return self.process.returncode, output, figures


def violations(figures: dict) -> set[str]:
    """The kinds that were found. The list has the first ones only, the counts have all."""
    return {kind for kind in KINDS if figures["counts"].get(kind)}


def commits_during(figures: dict, event: dict) -> list[int]:
    """The commits of each whole second of a fault, without its first half second."""
    seconds = range(math.ceil(event["begin_s"] + 0.5), math.floor(event["end_s"]))
    return [figures["by second"][second]["commits"] for second in seconds]
