"""The user that the server runs as, and the resources that it requests."""

import os
import pwd
import socket
import subprocess
from pathlib import Path

import pytest
from certificates import Authority
from processes import PROGRAMS, Process, Server, answers, eventually, free_port

as_root = pytest.mark.usefixtures("root")


def statuses(pid: int) -> list[dict[str, list[str]]]:
    """`/proc/PID/status` of each thread."""
    rows = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (line.split(":", 1) for line in (task / "status").read_text().splitlines())
        rows.append({name: words.split() for name, words in lines})
    return rows


def free_low_port() -> int:
    """A port that only root may open."""
    for port in range(700, 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    pytest.fail("no low port is free")


@as_root
def test_every_thread_is_another_user_once_the_ports_are_open(tmp_path):
    nobody = pwd.getpwnam("nobody")
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    key.chmod(0o600)
    port, plain_port, metrics_port = free_low_port(), free_port(), free_port()
    command = [
        PROGRAMS / "lookaside-server", "-u", "nobody", "-t", "2",
        "-p", port, "-l", f"127.0.0.1,notls:127.0.0.1:{plain_port}",
        "-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}", "--metrics-address", metrics_port,
    ]  # fmt: skip
    server = Process("server", command, tmp_path)
    try:
        server.wait_ready(lambda: answers(plain_port))
        threads = statuses(server.running.pid)
        assert len(threads) >= 5
        for status in threads:
            assert status["Uid"] == [str(nobody.pw_uid)] * 4 and status["Gid"] == [str(nobody.pw_gid)] * 4
            assert set(status["Groups"]) == {str(group) for group in os.getgrouplist("nobody", nobody.pw_gid)}
            assert status["CapEff"] == ["0" * 16]
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        with authority.context().wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(b"refresh_certs\r\n")
            assert connection.recv(1000).startswith(b"Error loading the "), "the key is root's alone"
    finally:
        assert server.stop() == 0


@as_root
def test_files_are_given_to_the_user(tmp_path):
    folder = tmp_path / "nobodys"
    folder.mkdir()
    for path in (folder, *tmp_path.parents[:3], tmp_path):
        if path.stat().st_uid == os.getuid() and str(path).startswith("/tmp/"):
            path.chmod(path.stat().st_mode | 0o011)
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    path, pid_path = folder / "m.sock", folder / "m.pid"
    command = [PROGRAMS / "lookaside-server", "-u", "nobody", "-s", path, "-P", pid_path, "-t", "1"]
    server = Process("server", command, tmp_path)
    try:
        server.wait_ready(lambda: "listening" in server.log())
        assert path.stat().st_uid == nobody.pw_uid and pid_path.stat().st_uid == nobody.pw_uid
        # The file is written after that line of the log.
        eventually(lambda: pid_path.read_text() == f"{server.running.pid}\n", "the file has the process id")
    finally:
        assert server.stop() == 0
    assert not pid_path.exists()


def test_an_unknown_user_is_refused(tmp_path):
    command = [PROGRAMS / "lookaside-server", "-u", "nobody-of-that-name", "-p", str(free_port())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2 and "nobody-of-that-name" in ended.stderr and "-u" in ended.stderr


@as_root
def test_root_without_a_user_is_warned(tmp_path):
    server = Server("server", tmp_path)
    try:
        assert "running as root" in server.log()
    finally:
        server.stop()


@as_root
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_memory_is_locked_and_core_files_are_allowed(tmp_path, user):
    server = Server("server", tmp_path, "-k", "-r", "-u", user)
    try:
        pid = server.running.pid
        if "memory is not locked" not in server.log():
            eventually(lambda: int(statuses(pid)[0]["VmLck"][0]) > 64 << 10, "all of -m is locked")
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        core = next(line for line in limits if line.startswith("Max core file size")).split()
        assert core[4] == core[5]
        assert "cannot" not in server.log()
    finally:
        assert server.stop() == 0
