"""The wheel of `make python-wheel`: the build backend packs the extension module that is built already, instead of
compiling another one, and other versions of Python import it from an environment that has nothing else."""

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from processes import ROOT
from tools import PYTHON_VERSIONS, find_python, need

PACKAGE = ROOT / "python" / "lookaside"
MODULE = "lookaside/_lookaside.abi3.so"
# What the module in the wheel ends with, unlike the one that lies among the sources.
MARK = b"of this test"
# A router is asked twice: the second value comes from the cache.
USE = """
import importlib.metadata, pathlib, sys
import lookaside
assert pathlib.Path(lookaside.__file__).is_relative_to(sys.prefix), lookaside.__file__
assert importlib.metadata.version("lookaside") == lookaside.__version__
[backend] = importlib.metadata.entry_points(group="dogpile.cache")
assert (backend.name, backend.value) == ("lookaside", "lookaside.dogpile:LookasideBackend")
with lookaside.Client([sys.argv[1]], timeout=5) as cache:
    loads = []
    for _ in range(2):
        assert cache.get_or_load("user:42", lambda: loads.append(1) or {"name": "Ann"}, ttl=60) == {"name": "Ann"}
    assert loads == [1], loads
    assert cache.get("user:42") == {"name": "Ann"}
print("%d.%d" % sys.version_info[:2])
"""


def environment_without_paths() -> dict[str, str]:
    """The variables of this process, but those by which Python finds the checkout, and maturin another cargo."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST")) and name != "CARGO"
    }


def build_wheel(folder: Path) -> tuple[Path, list[list[str]]]:
    """The wheel, and the commands of cargo by which the backend has made it."""
    cargo = shutil.which("cargo")
    assert cargo, "cargo is missing"
    library = folder / "lib_lookaside.so"
    library.write_bytes((PACKAGE / Path(MODULE).name).read_bytes() + MARK)
    shim = folder / "bin" / "cargo"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests/python/prebuilt_cargo.py"}" "$@"\n')
    shim.chmod(0o755)
    commands = folder / "commands"
    environment = environment_without_paths() | {
        "PATH": f"{shim.parent}:{os.environ['PATH']}",
        "PREBUILT": str(library),
        "REAL_CARGO": cargo,
        "COMMANDS": str(commands),
    }
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--wheel-dir", folder]
    made = subprocess.run([*pip, ROOT / "python"], env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    [wheel] = folder.glob("*.whl")
    return wheel, [json.loads(line) for line in commands.read_text().splitlines()]


def install(wheel: Path, version: str, folder: Path) -> Path:
    """The interpreter of a new environment that has the wheel and nothing else."""
    environment = folder / version
    subprocess.run([find_python(version), "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    # Not from an index: there is nothing that it needs.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--disable-pip-version-check", "--no-index"]
    installed = subprocess.run([*pip, "--no-compile", wheel], capture_output=True, text=True)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    return python


def test_a_wheel_has_the_package_and_serves_other_versions_of_python(cluster, tmp_path):
    wheel, commands = build_wheel(tmp_path)
    compiled = [words for words in commands if words[0] == "rustc"]
    assert len(compiled) == 1 and str(ROOT / "python" / "Cargo.toml") in compiled[0], commands
    assert compiled[0][compiled[0].index("--profile") + 1] == "release", compiled
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
        metadata = next(packed.read(name).decode() for name in packed.namelist() if name.endswith("/METADATA"))
        assert packed.read(MODULE).endswith(MARK), "the module of the sources was packed"
    sources = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert names == {str(path.relative_to(ROOT / "python")) for path in sources}
    assert {"lookaside/py.typed", "lookaside/_lookaside.pyi", MODULE} < names
    assert "\nRequires-Python: >=3.10\n" in metadata and "\nRequires-Dist:" not in metadata, metadata
    assert wheel.name.endswith(f"-cp310-abi3-linux_{platform.machine()}.whl")

    running = "{}.{}".format(*sys.version_info)
    found = [version for version in PYTHON_VERSIONS if version != running and find_python(version)]
    if not found:
        need(f"python{PYTHON_VERSIONS[0]}")
    # The oldest one and the newest.
    for version in {found[0], found[-1]}:
        command = [install(wheel, version, tmp_path), "-c", USE, f"127.0.0.1:{cluster.port}"]
        used = subprocess.run(command, cwd=tmp_path, env=environment_without_paths(), capture_output=True, text=True)
        assert (used.returncode, used.stdout.strip()) == (0, version), used.stderr
        cluster.client().delete("user:42")
