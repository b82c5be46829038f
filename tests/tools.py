"""What tests need beside the built programs, and a machine may lack: they are skipped there, with the reason.

LOOKASIDE_EXPECTED_TOOLS names what the machine has, as continuous integration does (`.ci/run`): where one of these is
missing nevertheless, the tests fail.
"""

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from chaos.network import missing_for_partitions
from replicated import fetched

EXPECTED = os.environ.get("LOOKASIDE_EXPECTED_TOOLS", "").split()


def find_libfaketime() -> Path | None:
    """The library that steps a process's clock."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


# The versions of Python that the client's extension module is for.
PYTHON_VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def find_python(version: str) -> Path | None:
    """The interpreter of a version, on the path or of pyenv; None if there is none."""
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [Path(on_path)] if on_path else []
    candidates += [found / "bin" / "python" for found in sorted(pyenv.glob(f"{version}.*"))]
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        # One of pyenv's on the path fails if its version is not chosen.
        try:
            asked = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False)
        except OSError:
            # An installation that was interrupted.
            continue
        if asked.stdout.strip() == version:
            return candidate
    return None


TOOLS = {
    "libfaketime": (find_libfaketime, "install the Debian package libfaketime"),
    "mysql": (lambda: fetched("mysql"), "run tests/fetch_database mysql"),
    "postgres13": (lambda: fetched("postgres13"), "run tests/fetch_database postgres13"),
    "postgres18": (lambda: fetched("postgres18"), "run tests/fetch_database postgres18"),
    "partitions": (
        lambda: missing_for_partitions() is None,
        "run the tests as root where network namespaces can be made",
    ),
    "root": (lambda: os.geteuid() == 0, "run the tests as root"),
} | {
    f"python{version}": (
        functools.partial(find_python, version),
        f"install Python {version} so that python{version} is on the path, or by pyenv",
    )
    for version in PYTHON_VERSIONS
}


def need(tool: str) -> None:
    """Skips the test if the machine lacks one of `TOOLS`; fails if it is expected to have it."""
    is_there, advice = TOOLS[tool]
    if is_there():
        return
    why = f"{tool} is missing: {advice}"
    if tool in EXPECTED:
        pytest.fail(why)
    pytest.skip(why)
