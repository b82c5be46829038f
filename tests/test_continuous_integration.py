"""Continuous integration: databases that could be fetched must be there, or their tests would be skipped."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT
from tools import PYTHON_VERSIONS

DATABASES = ("mysql", "mariadb", "postgres13", "postgres18")
# Without what fetches packages.
PROGRAMS = (
    "bash", "cat", "chmod", "dirname", "dpkg", "dpkg-deb", "env", "find", "flock", "grep", "head", "id", "mkdir", "mv",
    "python3", "rm", "sh", "sha256sum", "tar", "true", "uname", "unshare",
)  # fmt: skip


class Machine:
    """A machine that has few programs, and a `make` that prints which tools it would expect."""

    def __init__(self, home: Path) -> None:
        self.programs, self.databases = home / "bin", home / "databases"
        self.programs.mkdir()
        for program in PROGRAMS:
            (self.programs / program).symlink_to(shutil.which(program))
        self.add_program("make", 'echo "expected: $LOOKASIDE_EXPECTED_TOOLS"')
        self.environment = {"PATH": str(self.programs), "LOOKASIDE_DATABASES": str(self.databases)}

    def add_program(self, name: str, script: str) -> None:
        """Adds a program, a shell script."""
        write_script(self.programs / name, script)

    def add_database(self, name: str) -> None:
        """A database that has been fetched already."""
        home = self.databases / name
        home.mkdir(parents=True)
        for program in ("run", "mysqlbinlog"):
            write_script(home / program, "")
        checksum = subprocess.run(["sha256sum", home / "run"], check=True, capture_output=True, text=True).stdout
        (home / "sha256").write_text(checksum)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess:
        """Runs a program of the project."""
        words = [ROOT / command[0], *command[1:]]
        return subprocess.run(words, capture_output=True, text=True, env=self.environment | environment)


def write_script(path: Path, script: str) -> None:
    """Writes a shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path):
    """A machine without databases."""
    return Machine(tmp_path)


def test_a_machine_that_cannot_have_a_database_goes_without_it(machine):
    for database in DATABASES:
        fetched = machine.run("tests/fetch_database", database)
        assert fetched.returncode == 3 and "is missing" in fetched.stderr, fetched
    tested = machine.run(".ci/run")
    assert tested.returncode == 0 and "libfaketime" in tested.stdout, tested
    assert not any(database in tested.stdout for database in DATABASES)
    makes_namespaces = os.geteuid() == 0 and subprocess.run(["unshare", "--net", "true"], check=False).returncode == 0
    assert ("partitions" in tested.stdout.split()) == makes_namespaces, tested
    assert makes_namespaces or os.geteuid() != 0 or "no network namespaces" in tested.stderr, tested


def test_a_fetch_that_fails_is_a_failure(machine, tmp_path):
    """The tests of MySQL were skipped when its packages had not been fetched, and all seemed well."""
    calls = tmp_path / "calls"
    machine.add_program("npm", f"echo called >>{calls}; exit 1")
    assert machine.run("tests/fetch_database", "postgres13").returncode not in (0, 3)
    calls.unlink()
    for database in ("mysql", "mariadb"):
        machine.add_database(database)
    tested = machine.run(".ci/run")
    assert tested.returncode == 1 and "postgres13 was not fetched" in tested.stderr, tested
    assert "expected:" not in tested.stdout and calls.read_text().count("called") == 3, "it was tried again"
    # Where it cannot be fetched for a while.
    named = machine.run(".ci/run", LOOKASIDE_EXPECTED_TOOLS="mysql mariadb")
    assert named.stdout == "expected: mysql mariadb\n", named


def test_what_has_been_fetched_is_expected(machine):
    for database in DATABASES:
        machine.add_database(database)
    tested = machine.run(".ci/run")
    assert tested.returncode == 0 and set(DATABASES) <= set(tested.stdout.split()), tested


def test_a_python_that_the_machine_has_is_expected(machine, tmp_path):
    """A version that was there and did not run was skipped, as one that is not there is."""
    machine.add_program("python3.12", "")
    (tmp_path / "pyenv" / "versions" / "3.13.0").mkdir(parents=True)
    tested = machine.run(".ci/run", PYENV_ROOT=str(tmp_path / "pyenv"))
    assert tested.returncode == 0 and {"python3.12", "python3.13"} <= set(tested.stdout.split()), tested
    assert "python3.10" not in tested.stdout and "no Python 3.10:" in tested.stderr, tested
    assert "no Python 3.12:" not in tested.stderr and "no Python 3.13:" not in tested.stderr, tested


def test_an_expected_python_that_does_not_run_is_a_failure(tmp_path):
    own = "{}.{}".format(*sys.version_info)
    version = next(version for version in PYTHON_VERSIONS if version != own)
    # An installation that was interrupted has no interpreter.
    (tmp_path / "versions" / f"{version}.0").mkdir(parents=True)
    environment = {"PATH": "/nowhere", "PYENV_ROOT": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    outcomes = {}
    for expected in ("", f"python{version}"):
        tests = ROOT / "tests/python/test_other_pythons.py"
        command = [sys.executable, "-m", "pytest", "-q", "-rfs", "-p", "no:cacheprovider", tests, "-k", version]
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=environment | {"LOOKASIDE_EXPECTED_TOOLS": expected}
        )
        assert f"python{version} is missing: install Python {version}" in ran.stdout, ran
        outcomes[expected] = ran.returncode
    assert outcomes == {"": 0, f"python{version}": 1}
