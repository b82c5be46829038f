"""The package's types are consistent, those of the extension module are true, and programs are checked by them."""

import os
import subprocess
import sys

from processes import ROOT

PROGRAM = """
from lookaside import (
    AsyncClient, AsyncRegionalClient, Client, RegionalClient, RemoteMarkers, RouterOptions, Udp, Window
)

cache = Client(["127.0.0.1:5000"])
direct = Client(
    ["127.0.0.1:5000"], config="file:router.json", udp=Udp(port=5001), window=Window.fixed(100),
    router_options=RouterOptions(leases=True), send_updates_directly=True,
)
by_tcp = Client(["127.0.0.1:5000"], config="file:router.json", udp=False, window=None)
name: str = cache.get_or_load("user:42", lambda: "ada", ttl=60)


@cache.cached("user:{id}")
def user(id: int) -> dict[str, str]:
    return {}


found: dict[str, str] = user(1)
key: str = user.key(1)
was_there: bool = user.delete(1)


regional = RegionalClient(cache, RemoteMarkers(ttl=60))
loaded: str = regional.get_or_load("user:42", lambda source: "ada" if source == "master" else "bob")
with regional.begin_write(["user:42"]) as write:
    named: list[str] = write.keys
from_master: dict[str, str] = regional.read_master(["user:42"], lambda keys, source: [source for _ in keys])


async def main() -> None:
    async with AsyncClient(["127.0.0.1:5000"]) as later:

        async def load() -> int:
            return 1

        number: int = await later.get_or_load("n", load)

        @later.cached("user:{id}")
        async def user_later(id: int) -> dict[str, str]:
            return {}

        found_later: dict[str, str] = await user_later(1)
        was_there_later: bool = await user_later.delete(1)
        regional_later = AsyncRegionalClient(later)
        async with await regional_later.begin_write(["user:42"]) as write_later:
            named_later: list[str] = write_later.markers

        async def load_from(source: str) -> int:
            return 1

        number_here: int = await regional_later.get_or_load("n", load_from)
        source_later: str = (await regional_later.find_sources(["n"]))["n"]
        wrong: str = await later.get_or_load("n", load)


also_wrong: int = user(1)
control_wrong: Window = Window(control="paper")
"""


def run(*command: str) -> subprocess.CompletedProcess:
    """A mypy program with the package of this checkout."""
    environment = os.environ | {"MYPYPATH": str(ROOT / "python")}
    return subprocess.run([sys.executable, "-m", *command], env=environment, capture_output=True, text=True)


def test_the_package_is_consistent(tmp_path):
    checked = run("mypy", "--strict", "--python-version", "3.10", "--cache-dir", str(tmp_path), "-p", "lookaside")
    assert checked.returncode == 0, checked.stdout


def test_the_stub_is_true():
    checked = run("mypy.stubtest", "lookaside._lookaside")
    assert checked.returncode == 0, checked.stdout


def test_a_program_is_checked(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = run("mypy", "--strict", "--cache-dir", str(tmp_path), str(program))
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if "wrong: " in line}
    found = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error: " in line}
    assert found == wrong and len(wrong) == 3, checked.stdout
