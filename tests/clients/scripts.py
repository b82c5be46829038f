"""Builds and runs the scripts that are written in other languages; each reports the differences that it found."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Build results stay in the checkout, ignored by git.
BUILT = HERE.parent.parent / "target" / "clients"
# Toolchains of hundreds of megabytes are asked for by `make clients` alone.
HEAVY = "LOOKASIDE_CLIENTS" in os.environ
WHY_NOT = "needs a toolchain of its own: `make clients` runs it"

BUILD_S = 160
RUN_S = 90


def build(language: str, *command: str) -> None:
    """Runs a language's builder in its folder."""
    BUILT.mkdir(parents=True, exist_ok=True)
    run(HERE / language, BUILD_S, command)


def exchange(language: str, *command: str) -> None:
    """Runs one script; fails with its output."""
    run(HERE / language, RUN_S, command)


def run(folder: Path, seconds: float, command: tuple[str, ...]) -> None:
    """Runs a command in a folder; fails when it fails."""
    ran = subprocess.run(
        [str(word) for word in command], cwd=folder, text=True, timeout=seconds,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert ran.returncode == 0, f"{command[0]} ended with {ran.returncode}:\n{ran.stdout}"
