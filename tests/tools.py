"""What tests need beside the built programs, and a machine may lack: they are skipped there, with the reason.

LOOKASIDE_EXPECTED_TOOLS names what the machine has, as continuous integration does (`.ci/run`): where one of these is
missing nevertheless, the tests fail.
"""

import os
from pathlib import Path

import pytest
from chaos.network import missing_for_partitions
from replicated import fetched

EXPECTED = os.environ.get("LOOKASIDE_EXPECTED_TOOLS", "").split()


def find_libfaketime() -> Path | None:
    """The library that steps a process's clock."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


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
