"""docs/from_memcached.md says what the program does: its tables are compared with the built one, row by row."""

import functools
import re
import socket
import subprocess

import pytest
from certificates import Authority
from processes import PROGRAMS, ROOT, Process, Server, accepts_at, free_port, stats

PAGE = (ROOT / "docs" / "from_memcached.md").read_text()
PROGRAM = PROGRAMS / "lookaside-server"
WORDS = {"supported", "different", "no effect", "refused", "new"}

# memcached 1.6.45's own, as `memcached -h` lists them (tests/differential/test_options.py compares).
MEMCACHED_FLAGS = set("pUsaAldrumMckvhiVPfnLDtRCbBIFXWYeSZoN")

# Options of -o that need a value.
VALUES = {"idle_timeout": "60", "slab_automove": "1", "read_buf_mem_limit": "64", "resp_obj_mem_limit": "64"}
TLS_VALUES = {
    "ssl_verify_mode": "1", "ssl_keyformat": "1",
    "ssl_ciphers": "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256",
    "ssl_min_version": "2", "ssl_handshake_timeout": "30", "ssl_wbuf_size": "32",
}  # fmt: skip


def table(heading: str) -> list[list[str]]:
    """The rows of the table of a section: the cells of each."""
    section = re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def names(heading: str) -> dict[str, str]:
    """Each name of a table whose first cell has several, and its word."""
    found = {}
    for cells, word, _ in table(heading):
        for name in re.findall(r"`([^`]+)`", cells):
            assert name not in found, f"{name} is in two rows"
            found[name] = word
    return found


def named(heading: str, *words: str) -> list[str]:
    """The names of a table with one of these words."""
    return [name for name, word in names(heading).items() if word in words]


@pytest.fixture(scope="module")
def help_text():
    """What `--help` prints."""
    command = [PROGRAM, "--help"]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={"COLUMNS": "100"}).stdout


def refused(*arguments: str) -> bool:
    """Whether the command line is refused."""
    ended = subprocess.run([PROGRAM, "-p", "-1", *arguments], capture_output=True, text=True, timeout=20)
    return ended.returncode == 2


def lines_about(log: str, option: str) -> list[str]:
    """The lines of a log that say that an option has no effect."""
    return [line for line in log.splitlines() if re.search(rf"{re.escape(option)}(=\S*)? has no effect", line)]


@pytest.mark.parametrize("heading", ["Options", "Names for `-o`", "Commands", "Settings", "Statistics"])
def test_every_row_has_one_of_the_words(heading):
    rows = table(heading)
    assert len(rows) > 3
    for cells in rows:
        assert cells[-2] in WORDS, cells
        assert cells[-1] or cells[-2] in ("supported", "no effect", "new"), f"no reason: {cells}"


def test_options_are_those_of_the_help(help_text):
    options = names("Options")
    flags = dict(
        re.findall(r"^ {2,6}(-\w|--[\w-]+)[^\n]*\n? *(.*)", help_text.partition("\nExamples:")[0], re.MULTILINE)
    )
    assert set(options) == set(flags)
    for name, word in options.items():
        is_memcacheds = name[1:] in MEMCACHED_FLAGS
        assert is_memcacheds == (word != "new"), name
        assert (word == "no effect") == flags[name].startswith("No effect here"), name
    assert {f"-{letter}" for letter in MEMCACHED_FLAGS} <= set(options)


def test_names_for_o_are_those_of_the_help(help_text):
    listed = help_text.partition("\nNames for -o:\n")[2].split()
    known = {word for word in listed if "_" in word or word in ("modern", "hashpower")}
    documented = {name for name, word in names("Names for `-o`").items() if word != "refused"}
    without_underscore = {name for name in documented if "_" not in name}
    assert documented - without_underscore == {name for name in known if "_" in name}
    assert without_underscore <= set(listed)


def test_names_for_o_have_the_effect_that_the_page_names(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    heading = "Names for `-o`"
    for is_tls, arguments in ((False, []), (True, ["-Z"])):
        given = [
            name for name in named(heading, "supported", "different", "no effect", "new") if ("ssl_" in name) == is_tls
        ]
        files = {"ssl_chain_cert": certificate, "ssl_key": key, "ssl_ca_cert": authority.certificate}
        values = {**VALUES, **TLS_VALUES, **files}
        options = [f"{name}={values[name]}" if name in values else name for name in given]
        command = [PROGRAM, "-s", tmp_path / f"socket-{is_tls}", "-t", "1", *arguments, "-o", ",".join(options)]
        server = Process(f"server-{is_tls}", command, tmp_path)
        try:
            server.wait_ready(functools.partial(accepts_at, tmp_path / f"socket-{is_tls}"))
            log = server.log()
        finally:
            server.stop()
        for name in given:
            is_without_effect = names(heading)[name] == "no effect" and not name.startswith("no_ssl")
            assert bool(lines_about(log, f"-o {name}")) == is_without_effect, f"{name}:\n{log}"
            warns = "a warning" in next(cells[-1] for cells in table(heading) if f"`{name}`" in cells[0])
            assert any("WARN" in line for line in lines_about(log, f"-o {name}")) == warns, name
        if is_tls:
            assert all(refused("-o", name) for name in given), "without -Z they are refused"
    assert all(refused("-o", name) for name in named(heading, "refused"))


def test_flags_without_effect_are_logged(tmp_path):
    flags = [["-R", "20"], ["-N", "2"], ["-L"], ["-C"]]
    assert {f"{flag}" for flag, *_ in flags} == set(named("Options", "no effect"))
    server = Server("server", tmp_path, *(word for flag in flags for word in flag))
    try:
        assert all(lines_about(server.log(), flag) for flag, *_ in flags)
    finally:
        server.stop()


def reply_to(port: int, request: str) -> bytes:
    """The first line of the reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request.encode() + b"\r\n")
        received = b""
        while b"\n" not in received:
            piece = connection.recv(1 << 16)
            assert piece, f"{request}: closed behind {received}"
            received += piece
        return received


def test_commands_have_the_replies_that_are_shown(server):
    rows = table("Commands")
    for request, expected, word, _ in rows:
        reply = reply_to(server.port, request.strip("`")).decode()
        assert reply.startswith(expected.strip("`")), f"{request}: {reply}"
        assert reply.startswith(("ERROR", "CLIENT_ERROR")) == (word == "refused"), request


def test_settings_are_those_of_the_program(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"stats settings\r\n")
        received = b""
        while not received.endswith(b"END\r\n"):
            received += connection.recv(1 << 16)
    assert set(names("Settings")) == {line.split()[1] for line in received.decode().splitlines()[:-1]}


def test_statistics_that_are_explained_exist(server):
    values = stats(server.port)
    assert set(names("Statistics")) <= set(values), set(names("Statistics")) - set(values)
    constants = {name: values[name] for name in named("Statistics", "no effect")}
    for number in range(100):
        reply_to(server.port, f"set key:{number} 0 1 0\r\n")
        reply_to(server.port, f"get key:{number}")
    reply_to(server.port, "flush_all")
    assert {name: stats(server.port)[name] for name in constants} == constants


def test_udp_is_refused_where_passwords_are_required(tmp_path):
    (tmp_path / "users").write_text("ada:secret\n")
    for flag in (["-S"], ["-Y", str(tmp_path / "users")]):
        assert refused("-U", str(free_port()), *flag)
