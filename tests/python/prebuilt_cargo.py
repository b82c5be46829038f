"""In place of `cargo` for the build backend of the Python package: a library is there already, so nothing is compiled.

All other commands are cargo's. PREBUILT names the library, REAL_CARGO is cargo, and COMMANDS is the file to which each
command is added.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def artifact(cargo: str, manifest: str) -> dict:
    """What `cargo rustc --message-format json` prints of a library that it has compiled."""
    command = [cargo, "metadata", "--format-version", "1", "--no-deps", "--manifest-path", manifest]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["packages"]
    package = next(package for package in packages if Path(package["manifest_path"]) == Path(manifest))
    target = next(target for target in package["targets"] if "cdylib" in target["kind"])
    profile = {"opt_level": "3", "debuginfo": 0, "debug_assertions": False, "overflow_checks": False, "test": False}
    return {
        "reason": "compiler-artifact", "package_id": package["id"], "manifest_path": manifest, "target": target,
        "profile": profile, "features": [], "filenames": [os.environ["PREBUILT"]], "executable": None, "fresh": True,
    }  # fmt: skip


def main(cargo: str, words: list[str]) -> None:
    """Runs a command."""
    with Path(os.environ["COMMANDS"]).open("a") as commands:
        commands.write(json.dumps(words) + "\n")
    if words[0] not in ("rustc", "build"):
        os.execv(cargo, [cargo, *words])
    print(json.dumps(artifact(cargo, words[words.index("--manifest-path") + 1])))
    print(json.dumps({"reason": "build-finished", "success": True}))


if __name__ == "__main__":
    main(os.environ["REAL_CARGO"], sys.argv[1:])
