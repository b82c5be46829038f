"""Fails when code depends on code that the pictures in ARCHITECTURE.md do not allow, or when modules form cycles.

* The block after "Dependency rules" is about crates: `a <- b, c <- d` says that b and c may depend on a, and d on all
  three. `all of these` stands for every crate named above it.
* Each block that begins with "```folders CRATE" is about the folders of one crate, and the files beside them:
  `a -> b, c -> d` says that a may use b, c and d, and b and c may use d. `everything` stands for all other folders.
  `lib` and `main` are not in it: they declare and export.

Both are transitive. An arrow that is drawn and that nothing uses is reported, too; `everything` and `all of these` are
not arrows. So is a cycle of folders, and a cycle of files that crosses folders or has more than `CYCLE_FILES_MAX`
files. Imports are read from `use` declarations and from paths in the code; test modules are left out.

A type name may be defined in `NAME_CRATES_MAX` crates at most, but for `SHARED_NAMES`: one name, one concept.

    check_architecture.py                  check
    check_architecture.py --show CRATE     every arrow between the folders of a crate, with the files that make it
"""

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CYCLE_FILES_MAX = 4

# Type names that more crates than these may define.
NAME_CRATES_MAX = 2
SHARED_NAMES = {"Error", "Options"}

Module = tuple[str, ...]


def transitive(direct: dict[str, set[str]]) -> dict[str, set[str]]:
    """Everything that can be reached from each name."""
    reached = {name: set(others) for name, others in direct.items()}
    changed = True
    while changed:
        changed = False
        for name, known in reached.items():
            wider = known.union(*(reached.get(other, set()) for other in known))
            changed |= wider != known
            reached[name] = wider
    return reached


def chains(picture: str, arrow: str) -> Iterator[list[set[str]]]:
    """The lines of a picture, each as groups of names in the order in which they are written."""
    for line in filter(None, map(str.strip, picture.splitlines())):
        yield [{name.strip() for name in group.split(",")} for group in line.split(arrow)]


def drawn(picture: str, arrow: str) -> Iterator[tuple[str, str]]:
    """The arrows of a picture, each as it is written; without those from or to all."""
    for groups in chains(picture, arrow):
        for left, right in zip(groups, groups[1:], strict=False):
            if not {"everything", "all of these"} & (left | right):
                yield from ((one, other) for one in sorted(left) for other in sorted(right))


def allowed_crates(picture: str) -> dict[str, set[str]]:
    """The crates that each crate of the picture may depend on."""
    direct: dict[str, set[str]] = {}
    for groups in chains(picture, "<-"):
        known_above = set(direct)
        groups = [known_above if group == {"all of these"} else group for group in groups]
        for name in set().union(*groups):
            direct.setdefault(name, set())
        for left, right in zip(groups, groups[1:], strict=False):
            for name in right:
                direct[name] |= left
    return transitive(direct)


def allowed_folders(picture: str) -> dict[str, set[str]]:
    """The folders that each folder of the picture may use."""
    direct: dict[str, set[str]] = {}
    wildcards = set()
    for groups in chains(picture, "->"):
        for name in set().union(*groups) - {"everything"}:
            direct.setdefault(name, set())
        for left, right in zip(groups, groups[1:], strict=False):
            if right == {"everything"}:
                wildcards |= left
                continue
            for name in left:
                direct[name] |= right
    allowed = transitive(direct)
    return allowed | {name: set(direct) for name in wildcards}


def check_crates(text: str) -> Iterator[str]:
    """Compares the picture of the crates with `cargo metadata`."""
    found = re.search(r"## Dependency rules.*?```\n(.*?)```", text, re.DOTALL)
    if not found:
        yield "ARCHITECTURE.md has no picture under 'Dependency rules'"
        return
    allowed = allowed_crates(found.group(1))
    output = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    packages = json.loads(output.stdout)["packages"]
    ours = {package["name"]: Path(package["manifest_path"]).parent.name for package in packages}
    for package in packages:
        crate = ours[package["name"]]
        if crate not in allowed:
            yield f"crate {crate} is not in the picture"
            continue
        for dependency in package["dependencies"]:
            other = ours.get(dependency["name"])
            if other and other not in allowed[crate]:
                yield f"crate {crate} depends on {other}, which the picture does not allow"
    used = {
        (ours.get(other["name"]), ours[package["name"]]) for package in packages for other in package["dependencies"]
    }
    for left, right in drawn(found.group(1), "<-"):
        if (left, right) not in used:
            yield f"crate {right} does not depend on {left}, which the picture draws"


NOISE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | b?r(\#*)".*?"\1 | b?"(?:\\.|[^"\\])*" | b?'(?:\\[^']+|[^'\\\n])'""",
    re.DOTALL | re.VERBOSE,
)
TEST_MODULE = re.compile(
    r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*(;|\{)"
)
USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
TYPE = re.compile(r"\b(?:struct|enum|trait)\s+([A-Z]\w*)")
PATH = re.compile(r"\b(?:crate|self|super)(?:::\w+)+|\b[a-z_]\w*(?:::\w+)+")
CHILD = re.compile(r"\bmod\s+(\w+)\s*;")


class Crate:
    """The modules of one crate and which of them use which."""

    def __init__(self, source: Path) -> None:
        self.files: dict[Module, Path] = {}
        self.code: dict[Module, str] = {}
        for path in sorted(source.rglob("*.rs")):
            module = self.module_of(path.relative_to(source))
            if path.name == "main.rs" or "tests" in module:
                continue
            self.files[module] = path.relative_to(source)
            self.code[module] = without_tests(NOISE.sub(" ", path.read_text()))
        self.exports: dict[Module, dict[str, Module]] = defaultdict(dict)
        for module, code in self.code.items():
            for public, tree in USE.findall(code):
                for name, target in expand(tree):
                    if public:
                        self.exports[module][name] = self.absolute(module, target)
        self.uses = {module: set(self.targets(module)) for module in self.code}

    @staticmethod
    def module_of(path: Path) -> Module:
        parts = list(path.with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        return tuple(parts)

    def absolute(self, module: Module, path: list[str]) -> Module:
        """A path as written in a module, from the crate's root; empty if it leads out of the crate."""
        head, rest = path[0], path[1:]
        if head == "crate":
            return tuple(rest)
        if head == "self":
            return module + tuple(rest)
        if head == "super":
            depth = 0
            while depth < len(path) and path[depth] == "super":
                depth += 1
            return module[: len(module) - depth] + tuple(path[depth:])
        if (*module, head) in self.files:
            return module + tuple(path)
        return ()

    def resolve(self, path: Module, depth: int = 0) -> Module | None:
        """The module that declares what a path names, through re-exports."""
        at: Module = ()
        for index, name in enumerate(path):
            if (*at, name) in self.files:
                at = (*at, name)
                continue
            target = self.exports[at].get(name)
            if target and depth < 8:
                return self.resolve(target + path[index + 1 :], depth + 1)
            return at
        return at if path else None

    def targets(self, module: Module) -> Iterator[Module]:
        """The modules that a module uses."""
        code = self.code[module]
        paths = [target for _, tree in USE.findall(code) for _, target in expand(tree)]
        paths += [found.split("::") for found in PATH.findall(USE.sub(" ", code))]
        for path in paths:
            absolute = self.absolute(module, path)
            target = self.resolve(absolute) if absolute else None
            if target is not None and target != module:
                yield target

    def folder(self, module: Module) -> str:
        """The folder, or the file beside the folders, that a module belongs to; empty for the crate's root."""
        return module[0] if module else ""


def without_tests(code: str) -> str:
    """The code without its test modules."""
    while found := TEST_MODULE.search(code):
        end = found.end()
        if found.group(1) == "{":
            depth = 1
            while depth and end < len(code):
                depth += {"{": 1, "}": -1}.get(code[end], 0)
                end += 1
        code = code[: found.start()] + code[end:]
    return code


def expand(tree: str) -> Iterator[tuple[str, list[str]]]:
    """`a::{b, c as d}` -> (b, [a, b]), (d, [a, c])."""
    tree = " ".join(tree.split())
    opened = tree.find("{")
    if opened < 0:
        path, _, alias = tree.partition(" as ")
        parts = [part.strip() for part in path.split("::") if part.strip()]
        if parts:
            if parts[-1] == "self":
                parts.pop()
            name = alias.strip() or (parts[-1] if parts else "")
            yield name, [part for part in parts if part != "*"] or ["self"]
        return
    prefix, depth, begin = tree[:opened], 0, opened + 1
    for at in range(opened, len(tree)):
        depth += {"{": 1, "}": -1}.get(tree[at], 0)
        if (tree[at] == "," and depth == 1) or depth == 0:
            if part := tree[begin:at].strip():
                yield from expand(prefix + part)
            begin = at + 1
        if depth == 0:
            break


def cycles(uses: dict[Module, set[Module]]) -> Iterator[list[Module]]:
    """The strongly connected components of more than one module (Tarjan)."""
    index: dict[Module, int] = {}
    low: dict[Module, int] = {}
    stack: list[Module] = []
    found: list[list[Module]] = []

    def visit(module: Module) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(uses.get(module, ())):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                found.append(component)

    sys.setrecursionlimit(10_000)
    for module in sorted(uses):
        if module not in index:
            visit(module)
    yield from found


def arrows(crate: Crate) -> dict[tuple[str, str], list[str]]:
    """The arrows between the folders of a crate, with the files that make them."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module, others in crate.uses.items():
        for other in others:
            ends = (crate.folder(module), crate.folder(other))
            if ends[0] != ends[1] and all(ends):
                found[ends].append(f"{crate.files[module]} -> {crate.files[other]}")
    return found


def check_folders(name: str, crate: Crate, picture: str | None) -> Iterator[str]:
    """Compares the picture of a crate's folders with its modules, and looks for cycles."""
    if picture is not None:
        allowed, used = allowed_folders(picture), arrows(crate)
        for left, right in drawn(picture, "->"):
            if (left, right) not in used:
                yield f"{name}: no file of {left} uses {right}, which the picture draws"
        folder_uses: dict[Module, set[Module]] = defaultdict(set)
        for left, right in used:
            folder_uses[(left,)].add((right,))
        for component in cycles(folder_uses):
            yield f"{name}: a cycle of folders: {', '.join(sorted(folder for (folder,) in component))}"
        for (left, right), files in sorted(used.items()):
            missing = [folder for folder in (left, right) if folder not in allowed]
            for folder in missing:
                yield f"{name}: {folder} is not in the picture of its folders ({files[0]})"
            if not missing and right not in allowed[left]:
                yield f"{name}: {left} uses {right}, which the picture does not allow: {', '.join(sorted(files)[:3])}"
    # The crate's root only declares and exports.
    inner = {module: {other for other in others if other} for module, others in crate.uses.items() if module}
    for component in cycles(inner):
        folders = {crate.files[module].parent for module in component}
        if len(component) > CYCLE_FILES_MAX or len({crate.folder(module) for module in component}) > 1:
            files = ", ".join(sorted(str(crate.files[module]) for module in component))
            yield f"{name}: a cycle of {len(component)} files in {len(folders)} folders: {files}"


def check_type_names(crates: dict[str, Crate]) -> Iterator[str]:
    """Looks for type names that too many crates define."""
    defining: dict[str, set[str]] = defaultdict(set)
    for name, crate in crates.items():
        for code in crate.code.values():
            for type_name in TYPE.findall(code):
                defining[type_name].add(name)
    shared = {name for name, folders in defining.items() if len(folders) > NAME_CRATES_MAX} - SHARED_NAMES
    for name in sorted(shared):
        yield f"type {name} is defined in {', '.join(sorted(defining[name]))}: one name, one concept"


def pictures(text: str) -> dict[str, str]:
    """The pictures of folders by crate."""
    return dict(re.findall(r"```folders (\w+)\n(.*?)```", text, re.DOTALL))


def sources(names: Iterable[str] = ()) -> Iterator[tuple[str, Crate]]:
    """The crates of the workspace."""
    for source in sorted((ROOT / "crates").glob("*/src")):
        if not names or source.parent.name in names:
            yield source.parent.name, Crate(source)


def main() -> int:
    """Checks, or shows arrows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="CRATE", help="the arrows between the folders of a crate")
    arguments = parser.parse_args()
    if arguments.show:
        for name, crate in sources([arguments.show]):
            for (left, right), files in sorted(arrows(crate).items()):
                print(f"{left} -> {right}   ({name}: {len(files)}, {', '.join(sorted(files)[:2])})")
            for component in cycles(crate.uses):
                print(
                    f"cycle of {len(component)}: {', '.join(sorted(str(crate.files[module]) for module in component))}"
                )
        return 0
    text = (ROOT / "ARCHITECTURE.md").read_text()
    wrong = list(check_crates(text))
    folders = pictures(text)
    crates = dict(sources())
    for name, crate in crates.items():
        wrong += check_folders(name, crate, folders.get(name))
    wrong += check_type_names(crates)
    for line in wrong:
        print(f"architecture: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
