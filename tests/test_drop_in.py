"""memcached's options, files and operator commands."""

import os
import socket
import stat
import subprocess

from processes import PROGRAMS, Process, Server, answers, connect, eventually, free_port


def ask(path, request: bytes) -> bytes:
    """The first reply of a server on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(request)
        return connection.recv(4096)


def test_a_unix_socket_with_its_mode_in_place_of_tcp(tmp_path):
    path = tmp_path / "m.sock"
    server = Process("server", [PROGRAMS / "lookaside-server", "-s", path, "-a", "770", "-t", "1"], tmp_path)
    try:
        server.wait_ready(lambda: ask_or_nothing(path).startswith(b"VERSION"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o770
        assert ask(path, b"set a 0 0 1\r\nx\r\n") == b"STORED\r\n"
        second = subprocess.run([PROGRAMS / "lookaside-server", "-s", path], capture_output=True, text=True, timeout=20)
        assert second.returncode == 1 and "-s" in second.stderr, second.stderr
        server.kill()
        server.start()
        server.wait_ready(lambda: ask_or_nothing(path).startswith(b"VERSION"))
    finally:
        server.stop()


def ask_or_nothing(path) -> bytes:
    """The version that a server on a Unix socket replies, if there is one."""
    try:
        return ask(path, b"version\r\n")
    except OSError:
        return b""


def test_in_the_background_with_a_pid_file_until_shutdown(tmp_path):
    port, pid_path = free_port(), tmp_path / "m.pid"
    command = [PROGRAMS / "lookaside-server", "-d", "-P", pid_path, "-p", str(port), "-t", "1", "-A"]
    assert subprocess.run(command, timeout=20).returncode == 0
    assert answers(port), "the parent exits only when the ports are open"
    pid = int(pid_path.read_text())
    assert pid != os.getpid() and os.getsid(pid) != os.getsid(0)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"shutdown now\r\n")
        assert connection.recv(100) == b"CLIENT_ERROR invalid shutdown mode\r\n"
        connection.sendall(b"shutdown\r\n")
        assert connection.recv(100) == b"", "as with memcached, the end is the answer"
    eventually(lambda: not pid_path.exists(), "the pid file is gone")


def test_a_daemonised_failure_is_reported_in_the_foreground(server):
    for status, arguments, complaint in ((1, ["-p", server.port], "-p"), (2, ["-p", -1, "-u", "no-such-user"], "-u")):
        command = [PROGRAMS / "lookaside-server", "-d", *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert ended.returncode == status and complaint in ended.stderr, ended.stderr


def test_shutdown_needs_permission(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"shutdown\r\n")
        assert connection.recv(100) == b"SERVER_ERROR: shutdown not enabled\r\n"
    assert answers(server.port)


def test_a_disabled_flush_is_refused_in_both_protocols(tmp_path):
    server = Server("server", tmp_path, "-F")
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as text:
            text.sendall(b"set key 0 0 1\r\nx\r\nflush_all\r\nflush_all 0 noreply\r\nget key\r\nquit\r\n")
            replies = text.makefile("rb").read()
        assert replies == b"STORED\r\nCLIENT_ERROR flush_all not allowed\r\nVALUE key 0 1\r\nx\r\nEND\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as binary:
            flush, quiet, quit_ = (bytes([0x80, opcode]) + bytes(22) for opcode in (0x08, 0x18, 0x07))
            binary.sendall(flush + quiet + quit_)
            replies = binary.makefile("rb").read()
        refusal = bytes([0, 0, 0, 0, 0, 0x20]) + (13).to_bytes(4, "big") + bytes(12) + b"Auth failure."
        assert replies == b"\x81\x08" + refusal + b"\x81\x18" + refusal + b"\x81\x07" + bytes(22)
        settings = connect(server.port).stats("settings")
        assert settings[b"flush_enabled"] == b"no"
    finally:
        server.stop()


def test_options_without_effect_are_logged(tmp_path):
    server = Server("server", tmp_path, "-R", "20", "-f", "1.25", "-o", "modern,slab_automove=1")
    try:
        for option in ("-R", "-o modern"):
            assert f"{option} has no effect" in server.log()
        for option in ("-f", "-o slab_automove=1"):
            assert f"{option} has no effect" not in server.log()
    finally:
        server.stop()


def test_an_unsupported_security_option_is_refused(tmp_path):
    for status, promise in ((2, ["-S"]), (1, ["-Y", "users"]), (2, ["-Z"])):
        command = [PROGRAMS / "lookaside-server", "-p", str(free_port()), *promise]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert ended.returncode == status and promise[0] in ended.stderr, ended.stderr


def test_v_logs_connections_and_commands(tmp_path):
    server = Server("server", tmp_path)
    try:
        assert "connection accepted" not in server.log()
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(b"verbosity 1\r\n")
            assert connection.recv(100) == b"OK\r\n"
        assert answers(server.port)
        eventually(lambda: "connection closed: normal" in server.log(), "connections are logged")
    finally:
        server.stop()
