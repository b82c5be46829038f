"""What must be there before anything is started: programs, Python packages, free ports."""

from __future__ import annotations

import socket
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
ROOT = FOLDER.parent.parent
REQUIREMENTS = FOLDER / "requirements.txt"
PYTHON_MIN = (3, 10)
PROGRAMS = ["lookaside", "lookaside-server", "lookaside-router", "lookaside-invalidator"]


class CannotStart(Exception):
    """Why, and what to do."""


def find_programs(folder: str | None) -> Path:
    """The folder of the built programs."""
    folders = [Path(folder)] if folder else [ROOT / "target" / "release", ROOT / "target" / "debug"]
    for found in folders:
        if all((found / program).is_file() for program in PROGRAMS):
            return found.resolve()
    places = " and in ".join(map(str, folders))
    raise CannotStart(
        f"not all of {', '.join(PROGRAMS)} are in {places}: build them by `make shop`, or name their folder"
    )


def find_client() -> Path:
    """The folder with the Python package `lookaside`, compiled."""
    if not (ROOT / "python" / "lookaside" / "_lookaside.abi3.so").is_file():
        raise CannotStart("the Python client is not compiled: run `make shop`")
    return ROOT / "python"


def find_python() -> str:
    """A Python with the required packages: this one if it has them, or else one in `.venv`, which is made here."""
    if sys.version_info < PYTHON_MIN:
        raise CannotStart(
            f"Python {sys.version.split()[0]} is too old: expected {'.'.join(map(str, PYTHON_MIN))} or later"
        )
    required = REQUIREMENTS.read_text()
    if all(is_installed(line) for line in required.split()):
        return sys.executable
    folder = FOLDER / ".venv"
    installed = folder / "installed.txt"
    if not installed.is_file() or installed.read_text() != required:
        print(f"Installing {REQUIREMENTS.name} into {folder}", flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "-r", REQUIREMENTS], check=True)
        except (OSError, subprocess.CalledProcessError) as why:
            raise CannotStart(f"cannot install the Python packages ({why}); Debian's python3-venv is needed") from why
        installed.write_text(required)
    return str(folder / "bin" / "python")


def is_installed(requirement: str) -> bool:
    """Whether this Python has the package, in the required version."""
    name, expected = requirement.split("==")
    try:
        return version(name.split("[")[0]) == expected
    except PackageNotFoundError:
        return False


def check_port(port: int, option: str) -> None:
    """Fails if a port of 127.0.0.1 is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as why:
            raise CannotStart(f"port {port} of 127.0.0.1 is taken ({why}): choose another one by {option}") from why


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
