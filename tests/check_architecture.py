"""Fails when a crate depends on one that the picture in ARCHITECTURE.md does not allow.

The picture is the block after "Who may know whom": `a <- b, c <- d` says that b and c may know a, and d all three.
`all of these` stands for every crate named above it. What a crate may know is transitive.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def allowed_dependencies(picture: str) -> dict[str, set[str]]:
    """What each crate named in the picture may depend on."""
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
    found = re.search(r"## Who may know whom.*?```\n(.*?)```", text, re.DOTALL)
    if not found:
        print("ARCHITECTURE.md has no picture under 'Who may know whom'", file=sys.stderr)
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
    for line in wrong:
        print(f"architecture: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
