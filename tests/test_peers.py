"""`experiments/peers` uses a program that has been fetched only if its checksums are right."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from processes import ROOT

PEERS = ROOT / "experiments" / "peers"


@pytest.fixture
def fetched(tmp_path) -> Path:
    """A folder in which memcached has been fetched; its runner."""
    home = tmp_path / "peers" / "memcached"
    program = home / "root" / "usr" / "bin" / "memcached"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho memcached 1.6.45\n")
    run = home / "run"
    run.write_text(f"#!/bin/sh\nexec {program}\n")
    for path in (program, run):
        path.chmod(0o755)
    write_checksums(home)
    return run


def write_checksums(home: Path) -> None:
    """What a fetch notes at its end."""
    paths = (home / "root" / "usr" / "bin" / "memcached", home / "run")
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}\n" for path in paths)
    (home / "sha256").write_text("".join(sums))


def peers(fetched: Path, name: str = "memcached") -> subprocess.CompletedProcess:
    """Runs the script where apt is not found, so that nothing is fetched."""
    programs = fetched.parent.parent.parent / "programs"
    programs.mkdir()
    for program in ("bash", "dirname", "env", "flock", "grep", "mkdir", "rm", "sh", "sha256sum"):
        (programs / program).symlink_to(next(path for path in which(program)))
    command = [PEERS, name, fetched.parent.parent]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": str(programs), "HOME": "/nowhere"})


def which(program: str):
    """Where a program is."""
    folders = map(Path, os.environ["PATH"].split(":"))
    return (folder / program for folder in folders if (folder / program).exists())


def test_a_fetched_program_is_used(fetched):
    found = peers(fetched)
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{fetched}\n", "")


def test_another_release_is_used_with_a_warning(fetched):
    program = fetched.parent / "root" / "usr" / "bin" / "memcached"
    program.write_text("#!/bin/sh\necho memcached 1.6.450\n")
    write_checksums(fetched.parent)
    found = peers(fetched)
    assert (found.returncode, found.stdout) == (0, f"{fetched}\n")
    assert found.stderr == "WARNING: peers: memcached is not memcached 1.6.45 but memcached 1.6.450\n"


@pytest.mark.parametrize("part", ["root/usr/bin/memcached", "run", "sha256"])
def test_a_changed_program_is_not_used(fetched, part):
    path = fetched.parent / part
    path.write_text(path.read_text() + "# changed\n" if part != "sha256" else "")
    found = peers(fetched)
    assert (found.returncode, found.stdout) == (3, "")
    assert "apt-get is missing" in found.stderr


def test_an_unknown_peer_is_refused(fetched):
    found = peers(fetched, "redis")
    assert found.returncode == 2
    assert found.stderr == "peers: no such peer: redis; expected memcached or twemproxy\n"
