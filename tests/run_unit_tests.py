"""Runs the test programs of all crates, some at a time: `cargo test` runs one after the other, and most of them wait
for the slowest of their tests while the processors idle. Prints the output of those that fail, and ends those that
hang."""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

CARGO = os.environ.get("CARGO", "cargo")
BUILD = [CARGO, "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]
# Their threads wait as much as they compute.
AT_ONCE = (os.cpu_count() or 1) + 1
# The slowest of them takes two minutes on two processors. One that takes longer than this hangs.
SECONDS_MAX = 900
# These take longest and begin first, so that none of them runs alone at the end.
FIRST = ("region", "all", "regions", "lookaside_router")


class Program(NamedTuple):
    """A test program, and the package that it runs in."""

    name: str
    path: str
    manifest: Path

    def run(self) -> "Run":
        """Runs it to its end or to SECONDS_MAX."""
        env = os.environ | {"CARGO_MANIFEST_DIR": str(self.manifest.parent)}
        # Not a pipe: a process that outlives the program would keep it open, and its reader waiting.
        with tempfile.TemporaryFile() as output:
            began = time.monotonic()
            process = subprocess.Popen(
                [self.path], cwd=self.manifest.parent, env=env,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                status = f"exited with {process.wait(SECONDS_MAX)}"
            except subprocess.TimeoutExpired:
                status = f"has not ended within {SECONDS_MAX} s, in {', '.join(threads_of(process.pid))}"
            seconds = time.monotonic() - began
            process.kill()
            process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        return Run(self, process.returncode == 0, status, text, seconds)


class Run(NamedTuple):
    """What became of a test program."""

    program: Program
    passed: bool
    status: str
    output: str
    seconds: float


def threads_of(pid: int) -> list[str]:
    """The names of its threads, which for tests are their own, cut to 15 bytes."""
    return sorted((task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir())


def built() -> list[Program]:
    """Builds all of them."""
    with subprocess.Popen(BUILD, stdout=subprocess.PIPE, text=True) as cargo:
        messages = [json.loads(line) for line in cargo.stdout]
    if cargo.returncode != 0:
        sys.exit(cargo.returncode)
    artifacts = [message for message in messages if message["reason"] == "compiler-artifact"]
    programs = [
        Program(message["target"]["name"], message["executable"], Path(message["manifest_path"]))
        for message in artifacts
        if message["profile"]["test"] and message["executable"]
    ]
    rank = {name: number for number, name in enumerate(FIRST)}
    return sorted(programs, key=lambda program: rank.get(program.name, len(rank)))


def result_of(output: str) -> str:
    """The harness's line about all tests."""
    return next((line for line in reversed(output.splitlines()) if line.startswith("test result:")), "no result")


def main() -> None:
    """Runs them all; exits with 1 if any fails."""
    failed = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for running in as_completed([pool.submit(program.run) for program in built()]):
            run = running.result()
            name = f"{run.program.manifest.parent.name}/{run.program.name}"
            print(f"{name}: {result_of(run.output)} ({run.seconds:.1f} s)", flush=True)
            if not run.passed:
                failed.append(name)
                print(f"{run.output}\n{name} {run.status}", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    sys.exit(subprocess.run([CARGO, "test", "--workspace", "--locked", "--doc"], check=False).returncode)


if __name__ == "__main__":
    main()
