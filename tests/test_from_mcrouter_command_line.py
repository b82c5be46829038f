"""The table of the command line in docs/from_mcrouter.md, and that of flags.

For each row of the first, the program is run, and the words of the column "here" are written from what it did: the page
must have the same words. The second names flags that are no options of this router: each does what its row says. (The
router's own test compares its rows with the flags: crates/router/src/cli/mcrouter/tests.rs.)
"""

import json
import re
import socket
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcrouter_setups import reply
from processes import PROGRAMS, Process, accepts_at, answers, eventually, free_port, stats
from test_from_mcrouter import quoted, table

ROUTER = PROGRAMS / "lookaside-router"
NOWHERE = '{"route": "NullRoute"}'
CONFIGURED = ("--config-str", NOWHERE)


def ended(*words: object, program: Path = ROUTER, **options) -> subprocess.CompletedProcess:
    """A router that ends by itself."""
    command = [str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def validated(*words: object) -> subprocess.CompletedProcess:
    """A router that only checks its command line and a good configuration."""
    return ended(*words, *CONFIGURED, "--validate-config")


def effect(flag: str, *value: object) -> str:
    """What the router does about a flag: "an error", "logged", or "the same" as mcrouter, in silence."""
    done = validated(flag, *value)
    if done.returncode == 3:
        return "an error"
    assert done.returncode == 0, done.stderr
    return "logged" if flag.split("=")[0] in done.stderr else "the same"


@contextmanager
def running(folder: Path, *words: object, program: Path = ROUTER):
    """A router on a free port: the port, and the process."""
    port = free_port()
    router = Process("router", [program, "-p", port, *CONFIGURED, *words], folder)
    router.wait_ready(lambda: answers(port))
    try:
        yield port, router
    finally:
        assert router.stop() == 0


def option(port: int, name: str) -> str:
    """The value that an option has in a running router."""
    lines = reply(port, f"get __mcrouter__.options({name})\r\n".encode()).decode().split("\r\n")
    assert lines[0].startswith("VALUE "), lines
    return lines[1]


def under_mcrouters_name(folder: Path) -> Path:
    """The router's program under mcrouter's name."""
    program = folder / "mcrouter"
    program.symlink_to(ROUTER)
    return program


def unknown_flags(_: Path) -> str:
    for named in ("--acl-something-new", "--something-new-enforce", "--auth-fiel=users"):
        assert effect(named) == "an error", named
    return f"{effect('--frobnicate', 7)}, unless its name says that it restricts access: then the router does not start"


def forms_of_flags(folder: Path) -> str:
    words = ("--route-pre=/a/b/", "--enable-flush-cmd", "--enable-flush-cmd=0", "-v", "3")
    with running(folder, *words, "--num-proxies", "%CPU_CORES%") as (port, router):
        found = [option(port, name) for name in ("route_prefix", "enable_flush_cmd", "verbosity")]
        assert found == ["/a/b/", "false", "3"] and "Unrecognized" not in router.log()
        threads = int(option(port, "num_proxies"))
    with running(folder, "--num-proxies", 0) as (port, _):
        assert int(stats(port)["threads"]) == threads, "one for each core"
    return "the same"


def empty_values(folder: Path) -> str:
    off = ("stats_root", "config_dump_root", "async_dir", "config_file")
    with running(folder, *(f"--{name.replace('_', '-')}=" for name in off)) as (port, router):
        assert [option(port, name) for name in off] == [""] * len(off)
        assert list(folder.iterdir()) == [router.log_path], "nothing is written"
    return (
        f"{effect('--stats-root=')} for mcrouter's flags; `--auth-file=`, which is new here, is "
        f"{effect('--auth-file=')}"
    )


def no_numbers(folder: Path) -> str:
    assert (effect("--server-timeout=soon"), effect("--client-timeout=-1")) == ("logged", "logged")
    with running(folder, "--server-timeout=soon", "--client-timeout=-1") as (port, _):
        assert (option(port, "server_timeout"), option(port, "client_timeout")) == ("1000", "60000")
    return "the same"


def numbers_beyond(folder: Path) -> str:
    with running(folder, "--keepalive-interval", 99_999) as (port, _):
        assert effect("--keepalive-interval", option(port, "keepalive_interval")) == "the same", "it is possible"
        assert effect("--keepalive-interval", int(option(port, "keepalive_interval")) + 1) == "logged"
    idle_max = 32_767
    assert effect("--keepalive-idle", idle_max) == effect("-I", idle_max) == "the same"
    for too_large in (("-p", 70_000), ("--keepalive-idle", idle_max + 1), ("-I", idle_max + 1)):
        assert effect(*too_large) == "an error", too_large
    return (
        f"{effect('--keepalive-interval', 99_999)}, the nearest possible one is used; `-p 70000` and a "
        f"`--keepalive-idle` above {idle_max:,} (memcached's `-I` is a size) are errors"
    )


def sources_of_the_configuration(folder: Path) -> str:
    good, bad = folder / "good.json", folder / "bad.json"
    good.write_text(NOWHERE)
    bad.write_text("{ broken")
    for words, status in (
        (("--config", NOWHERE, "-f", bad, "--config-str", "{ broken"), 0),
        (("--config", f"file:{bad}", "-f", good), 3),
        (("-f", good), 0),
        (("--config-str", NOWHERE), 0),
        (("-f", good, "--config-str", NOWHERE), 3),
        ((), 3),
    ):
        done = ended(*words, "--validate-config")
        assert done.returncode == status, (words, done.stderr)
    return "the same"


def listeners(folder: Path) -> str:
    path, port, own = folder / "r.sock", free_port(), free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        adopted = listener.getsockname()[1]
        words = ("--listen-sock-fd", listener.fileno(), "-s", path, "-p", port, *CONFIGURED)
        router = Process("adopting", [ROUTER, *words], folder, pass_fds=[listener.fileno()])
    try:
        router.wait_ready(lambda: answers(adopted))
        assert not path.exists() and not answers(port), "the descriptor replaces both"
    finally:
        router.stop()
    router = Process("unix", [ROUTER, "-s", path, "-p", port, "-l", f"127.0.0.1:{own}", *CONFIGURED], folder)
    try:
        router.wait_ready(lambda: accepts_at(path))
        assert not answers(port), "the Unix socket replaces it"
        eventually(lambda: answers(own), "the address with a port of its own is open")
    finally:
        router.stop()
    return "the same; an address of `-l` with a port of its own is opened besides a Unix socket"


def without_a_port(folder: Path) -> str:
    with socket.socket() as taken:
        # The router says which port it would have opened.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 5000))
            taken.listen()
        except OSError:
            pass  # another program has it
        done = ended(*CONFIGURED)
    assert done.returncode == 2, done.stderr
    (port,) = re.findall(r"127\.0\.0\.1:(\d+) is taken", done.stderr)
    done = ended(*CONFIGURED, program=under_mcrouters_name(folder))
    word = {3: "an error"}[done.returncode]
    assert "--port" in done.stderr, done.stderr
    return f"{port}; {word} [under mcrouter's name](#under-mcrouters-name)"


def answers_other_hosts(port: int) -> bool:
    """Whether the port is open at another address of this machine than the first."""
    return answers(port, host="127.0.0.2")


def addresses(folder: Path) -> str:
    with running(folder) as (port, router):
        eventually(lambda: "listening on" in router.log(), "the log says where")
        (address,) = re.findall(rf"listening on (\S+):{port}", router.log())
        assert not answers_other_hosts(port)
        (warning,) = [line for line in router.log().splitlines() if "--listen-addresses='*'" in line]
        assert "WARN" in warning
    for words in (("-l", "*"), ("--listen-addresses=*",)):
        with running(folder, *words) as (port, _):
            assert answers_other_hosts(port)
    (folder / "router.log").unlink()
    with running(folder, "-l", "127.0.0.1") as (port, router):
        assert "--listen-addresses='*'" not in router.log(), "addresses are given"
    with running(folder, program=under_mcrouters_name(folder)) as (port, _):
        assert answers_other_hosts(port)
    return (
        f"{address}: other hosts are served only at addresses that you name (`-l '*'`). Ports without addresses are "
        "logged as a warning. All [under mcrouter's name](#under-mcrouters-name)"
    )


def socket_of_the_parent_with_certificates(_: Path) -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        words = ("--listen-sock-fd", listener.fileno(), "--ssl-require-peer-certs", *CONFIGURED)
        done = ended(*words, pass_fds=[listener.fileno()])
    assert done.returncode == 3, done.stderr
    (why,) = re.findall(r"--listen-sock-fd: (clients of that socket use no TLS)", done.stderr)
    return f"an error: {why}"


def command_line_in_stats(folder: Path) -> str:
    secret = "hunter2"
    words = ["--etcd-password", secret, f"--frobnicate={secret}", "-t", 700]
    with running(folder, *words, *(f"--service-name={250 * 'n'}" for _ in range(30))) as (port, _):
        (shown,) = re.findall(r"^STAT commandargs (.*)\r$", reply(port, b"stats\r\n").decode(), re.MULTILINE)
    assert "--etcd-password ... --frobnicate=... -t 700 --service-name=nnn" in shown
    assert secret not in shown and "NullRoute" not in shown and "--config-str {...}" in shown
    return (
        "without passwords, the text of a configuration and values of unknown flags; at most "
        f"{len(shown.removesuffix('...')):,} characters"
    )


def flavors(folder: Path) -> str:
    given = {
        "options": {"server_timeout": 300},
        "libmcrouter_options": {"probe_timeout_max": "7000"},
        "standalone_options": {"client_timeout": 500},
    }
    flavor, beside = folder / "web.json", folder / "web-standalone.json"
    flavor.write_text(json.dumps({"options": given["options"]}))
    beside.write_text(json.dumps({name: given[name] for name in ("libmcrouter_options", "standalone_options")}))
    flags = {name: (key, str(value)) for name, options in given.items() for key, value in options.items()}
    with running(folder, flavor) as (port, _):
        read = {name: option(port, key) for name, (key, _) in flags.items()}
        assert read == {name: value for name, (_, value) in flags.items()}
    overriding = [word for key, _ in flags.values() for word in (f"--{key.replace('_', '-')}", 8_000)]
    with running(folder, flavor, *overriding) as (port, _):
        overridden = [name for name, (key, _) in flags.items() if option(port, key) == "8000"]
    first, second, third = overridden
    return (
        f"the same: the command line overrides `{first}` and, in `FILE{beside.stem.removeprefix('web')}.EXT`, "
        f"`{second}` and `{third}`"
    )


def exit_statuses(folder: Path) -> str:
    with running(folder):
        pass  # which ends with 0
    assert ended("-f", folder / "none.json", "-p", free_port()).returncode == 2
    assert ended(*CONFIGURED, "--server-timeout=0").returncode == 3
    (other,) = re.findall(r"(\d) when it cannot go on", " ".join(ended("--help").stdout.split()))
    return f"the same, and {other} if a running router cannot go on"


ROWS: dict[str, Callable[[Path], str]] = {
    "an unknown flag": unknown_flags,
    "a beginning of a flag's name; `--toggle=0`; `-v 3`; `%CPU_CORES%`": forms_of_flags,
    "an empty value, as in `--stats-root=`": empty_values,
    "a value that is no number, or negative where none can be": no_numbers,
    "a number beyond what is possible here": numbers_beyond,
    "`--config`, `-f`, `--config-str`": sources_of_the_configuration,
    "`--listen-sock-fd`, `--unix-domain-sock`, ports": listeners,
    "no port": without_a_port,
    "`--listen-addresses`": addresses,
    "`--listen-sock-fd` with `--ssl-require-peer-certs`": socket_of_the_parent_with_certificates,
    "`commandargs` in `stats`": command_line_in_stats,
    "a file of options (flavor)": flavors,
    "exit status": exit_statuses,
}


@pytest.mark.parametrize("cells", table("Switch"), ids=lambda cells: cells[0])
def test_a_row_of_the_command_line_is_what_the_router_does(tmp_path, cells):
    name, _, here = cells
    assert ROWS[name](tmp_path) == here


def test_the_rows_of_the_command_line_are_all_there():
    assert [cells[0] for cells in table("Switch")] == list(ROWS)


def flags() -> dict[str, tuple[list[str], str]]:
    """mcrouter's flags by their long names: the short forms, and what the page says of each."""
    found = {}
    for names, reported in table("Flags"):
        *shorts, name = names.strip("`").split()
        found[name] = (shorts, reported)
    return found


def test_accepted_flags_are_accepted_and_logged_as_on_the_page(tmp_path):
    accepted = {name: reported for name, (_, reported) in flags().items() if reported.startswith("accepted")}
    assert len(accepted) > 60
    done = ended(*(f"{name}=1" for name in accepted), *CONFIGURED, "--validate-config", cwd=tmp_path)
    assert done.returncode == 0 and "Unrecognized" not in done.stderr, done.stderr
    for name, reported in accepted.items():
        kind, _, why = reported.partition(": ")
        expected = {
            "accepted": [],
            "accepted, without effect": [f"{name} has no effect: {why}"],
            "accepted, not supported": [f"{name} is not supported: {why}"],
        }[kind]
        lines = [line for line in done.stderr.splitlines() if f"{name} has no" in line or f"{name} is not" in line]
        assert len(lines) == len(expected), (name, lines)
        assert all(words in lines[0] for words in expected), (name, lines)


def test_refused_flags_are_refused_with_the_reason_of_the_page():
    refused = {name: reported for name, (_, reported) in flags().items() if reported.startswith("refused: ")}
    assert len(refused) > 4
    for name, reported in refused.items():
        done = validated(name)
        assert done.returncode == 3 and f"{name}: {reported.removeprefix('refused: ')}" in done.stderr, (
            name,
            done.stderr,
        )
        assert validated(f"{name}=0").returncode == 0, "it asks for nothing"


def test_supported_flags_are_options_of_the_router():
    listed = ended("--help").stdout
    supported = {name: row for name, row in flags().items() if row[1].startswith("supported")}
    assert len(supported) > 60
    for name, (shorts, reported) in supported.items():
        (own,) = quoted(reported) or [name]
        assert re.search(rf"{own}(?![\w-])", listed), name
        for short in shorts:
            assert re.search(rf"^ +{short}, {own}(?![\w-])", listed, re.MULTILINE), (name, short)
    known = {"accepted", "accepted, without effect", "accepted, not supported", "refused", "supported"}
    assert {reported.partition(": ")[0] for _, reported in flags().values()} == known
