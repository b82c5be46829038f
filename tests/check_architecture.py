"""Fails when a crate depends on one that the picture in ARCHITECTURE.md does not allow.

The picture is the first block after "Dependency rules": `a <- b, c <- d` says that b and c may depend on a, and d on
all three. `all of these` stands for every crate named above it. The relation is transitive. A crate of `DEV_ONLY` may
only be a dev-dependency.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEV_ONLY = {"test_support"}


def allowed_dependencies(picture: str) -> dict[str, set[str]]:
    """The crates that each crate of the picture may depend on."""
    direct: dict[str, set[str]] = {}
    for line in filter(None, map(str.strip, picture.splitlines())):
        known_above = set(direct)
        groups = [
            known_above if group.strip() == "all of these" else {name.strip() for name in group.split(",")}
            for group in line.split("<-")
        ]
        for group in groups:
            for name in group:
                direct.setdefault(name, set())
        for left, right in zip(groups, groups[1:], strict=False):
            for name in right:
                direct[name] |= left
    changed = True
    while changed:
        changed = False
        for name, known in direct.items():
            wider = known.union(*(direct[other] for other in known))
            changed |= wider != known
            direct[name] = wider
    return direct


def main() -> int:
    """Compares the picture with `cargo metadata`."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    found = re.search(r"## Dependency rules.*?```\n(.*?)```", text, re.DOTALL)
    if not found:
        print("ARCHITECTURE.md has no picture under 'Dependency rules'", file=sys.stderr)
        return 1
    allowed = allowed_dependencies(found.group(1))
    output = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    packages = json.loads(output.stdout)["packages"]
    ours = {package["name"]: Path(package["manifest_path"]).parent.name for package in packages}
    wrong = []
    for package in packages:
        crate = ours[package["name"]]
        if crate not in allowed:
            wrong.append(f"{crate} is not in the picture")
            continue
        for dependency in package["dependencies"]:
            other = ours.get(dependency["name"])
            if other and other not in allowed[crate]:
                wrong.append(f"{crate} depends on {other}, which the picture does not allow")
            if other in DEV_ONLY and dependency["kind"] != "dev":
                wrong.append(f"{crate} depends on {other} outside its tests")
    for line in wrong:
        print(f"architecture: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
