"""libmemcached's own test of a server, `memcapable`, in both protocols, and a bounded load by its `memcslap`.

What memcapable expects of a command with words too many depends on the release that `version` names.
"""

import shutil
import subprocess

import pytest

# Debian names libmemcached's programs `memccapable` and so on; elsewhere it is `memcapable`.
CAPABLE = shutil.which("memccapable") or shutil.which("memcapable") or "memccapable is missing: see tests/install"
SLAP = shutil.which("memcslap") or "memcslap is missing: see tests/install"

# memcached passes over the words after `delete KEY`; memcapable still expects an error. Ours refuses them.
FAILURES_OF_MEMCACHED = {"ascii delete", "ascii delete noreply"}
RUN_S = 120
TESTS_MIN = 25


def failures(port: int, protocol: str) -> tuple[set[str], str]:
    """The names of memcapable's tests that failed, and its whole output."""
    # Both outputs into one pipe: the names are written to the one, the failures to the other.
    command = [CAPABLE, "-h", "127.0.0.1", "-p", str(port), protocol]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_S)
    outcomes = [line for line in ran.stdout.splitlines() if "[" in line]
    assert len(outcomes) >= TESTS_MIN, ran.stdout
    return {line.partition("[")[0].strip() for line in outcomes if "[FAIL]" in line}, ran.stdout


def test_capable_in_text(open_server):
    expected = FAILURES_OF_MEMCACHED if open_server.kind == "memcached" else set()
    failed, output = failures(open_server.port, "-a")
    assert failed == expected, output


def test_capable_in_binary(open_server):
    failed, output = failures(open_server.port, "-b")
    assert not failed, output


@pytest.mark.parametrize("protocol", ["text", "binary"])
@pytest.mark.parametrize("kind_of_load", ["set", "get", "mget"])
def test_bounded_load(open_server, protocol, kind_of_load):
    command = [SLAP, "-s", f"127.0.0.1:{open_server.port}", "-t", kind_of_load, "-c", "4", "-e", "500"]
    command += ["-b"] if protocol == "binary" else []
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    assert ran.returncode == 0 and not ran.stderr, ran.stdout + ran.stderr
