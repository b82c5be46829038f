"""Fails when a file of a crate's tests would not run.

A crate with `autotests = false` has most of its tests in one program: that is linked once, and while some of its tests
wait, others run. Cargo then builds only the programs of Cargo.toml, and a program has only the files that it declares.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE = re.compile(r"^mod (\w+);", re.MULTILINE)


def unused_files(manifest: Path) -> set[Path]:
    """The files directly in `tests` that belong to no program."""
    crate = tomllib.loads(manifest.read_text())
    folder = manifest.parent / "tests"
    if crate["package"].get("autotests", True):
        return set()
    used = set()
    for program in crate.get("test", []):
        root = manifest.parent / program.get("path", f"tests/{program['name']}.rs")
        used.add(root)
        if root.name == "main.rs":
            used |= {root.with_name(f"{name}.rs") for name in MODULE.findall(root.read_text())}
    return set(folder.glob("*.rs")) - used


def main() -> int:
    unused = [path for manifest in ROOT.glob("crates/*/Cargo.toml") for path in unused_files(manifest)]
    for path in sorted(unused):
        name = path.relative_to(ROOT)
        print(f"{name}: no test program has it: declare `mod {path.stem};` in main.rs beside it, and no `mod` in it")
    return 1 if unused else 0


if __name__ == "__main__":
    sys.exit(main())
