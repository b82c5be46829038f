"""The files of a configuration while they are being replaced, or wrong, when a router starts."""

import contextlib
from pathlib import Path

import pytest
from mcrouter_setups import Setup, set_of, setup
from processes import answers, eventually


def start(it: Setup, tmp_path: Path) -> None:
    """Starts a router once with a good configuration, so that it has a last good one, and stops it."""
    it.file("pool.json", {"servers": [it.address("one")]})
    it.file("router.json", '{"pools": {"A": "@import(file:pool.json)"}, "route": "PoolRoute|A"}')
    it.start("-f", tmp_path / "router.json", "--config-cache", tmp_path / "last.json")
    it.router.stop()


def restart(it: Setup) -> None:
    it.router.start()
    it.router.wait_ready(lambda: answers(it.port), 40)


def is_stored_at(it: Setup, server: str) -> bool:
    """Whether a key is stored at this server."""
    return it.ask(set_of("k", "v")) == [b"STORED\r\n"] and it.at(server, "k") == b"v"


def test_an_imported_file_that_was_wrong_at_the_start_is_read_when_it_is_right(tmp_path):
    """The router had started from its last good configuration, which imports nothing, and watched no other file."""
    with setup(tmp_path) as it:
        start(it, tmp_path)
        it.file("pool.json", "{ broken")
        restart(it)
        assert "starting with the last good one" in it.router.log() and is_stored_at(it, "one")
        it.file("pool.json", {"servers": [it.address("two")]})
        eventually(lambda: is_stored_at(it, "two"), "the other server is in use")


@contextlib.contextmanager
def rewritten(path: Path):
    """The file is different each time that it is read: it is a link to the kernel's time since boot."""
    content = path.read_text()
    path.unlink()
    path.symlink_to("/proc/uptime")
    try:
        yield
    finally:
        path.unlink()
        path.write_text(content)


@pytest.mark.parametrize("name", ["router.json", "pool.json"])
def test_a_file_that_changes_all_the_time_is_named_and_read_when_it_stays(tmp_path, name):
    """The router took whatever it found at the first read."""
    with setup(tmp_path) as it:
        start(it, tmp_path)
        it.file("pool.json", {"servers": [it.address("two")]})
        with rewritten(tmp_path / name):
            restart(it)
            assert f"{tmp_path / name} cannot be read: something writes it all the time" in it.router.log()
            assert is_stored_at(it, "one"), "the last good one"
        eventually(lambda: is_stored_at(it, "two"), "the other server is in use")
