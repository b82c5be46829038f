"""The pages of docs/clients show what the tests run, and name the versions that the tests install."""

import json
import platform
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from page import FOLDER, UNNAMED, Page, pages
from processes import ROOT
from scripts import HERE
from toolchains import TOOLCHAINS

# The heading under which a page shows code that no test runs.
NOT_RUN = "## Not run by the tests"


def locked_versions(name: str) -> dict[str, str]:
    """The versions in the lock file of a page, by the names that the page uses; none if Debian's packages are used."""
    folder = HERE / "pages" / name
    if name == "go":
        return dict(re.findall(r"^\t(\S+) (\S+)$", (folder / "go.mod").read_text(), re.MULTILINE))
    if name == "node":
        return json.loads((folder / "package.json").read_text())["dependencies"]
    if name == "java":
        space = "{http://maven.apache.org/POM/4.0.0}"
        found = ElementTree.parse(folder / "pom.xml").getroot().iter(f"{space}dependency")
        words = [[one.findtext(space + part) for part in ("groupId", "artifactId", "version")] for one in found]
        return {f"{group}:{artifact}": version for group, artifact, version in words}
    return {}


def debian_version(package: str) -> str | None:
    """The upstream part of the version of an installed package; `None` if it is not installed."""
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    found = re.match(r"(?:\d+:)?([\d.]+)", asked.stdout)
    return found[1].rstrip(".") if found else None


def test_every_page_has_a_toolchain():
    assert pages() == sorted(TOOLCHAINS)


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_all_code_of_a_page_is_run_or_marked(name):
    run, _, marked = Page(name).text.partition(NOT_RUN)
    names = re.findall(r"^```(\w+)(?: (\S+))?\n", run, re.MULTILINE)
    unnamed = [language for language, file, *_ in names if language and not file and language not in UNNAMED]
    assert unnamed == [], f"blocks of {name}.md that are no files: no test runs them"
    shown = re.findall(r"^```\w+ (\S+)\n", marked, re.MULTILINE)
    assert shown == [], f"{name}.md marks these files as not run"


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_versions_of_a_page_are_those_of_its_lock_file(name):
    named, locked = Page(name).versions(), locked_versions(name)
    if locked:
        assert named == {library: locked.get(library) for library in named}
    elif "bookworm" not in platform.freedesktop_os_release().get("VERSION_CODENAME", ""):
        pytest.skip("the page names the versions of Debian 12")
    else:
        installed = {package: found for package in named if (found := debian_version(package))}
        assert installed == {package: named[package] for package in installed}


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_commands_of_a_page_name_what_the_tests_install(name):
    page = Page(name)
    installed = (HERE / "install").read_text()
    for line in re.findall(r"apt-get install (.*)", page.commands()):
        missing = [package for package in line.split() if not re.search(rf"(?<![\w-]){package}(?![\w-])", installed)]
        assert missing == [], "tests/clients/install lacks them"
    locked = locked_versions(name)
    for line in re.findall(r"npm install (.*)", page.commands()):
        assert line.split() == [f"{package}@{locked[package]}" for package in page.versions()]


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_commands_of_a_page_have_options_that_the_programs_have(name):
    reference = (ROOT / "docs" / "reference" / "flags.md").read_text()
    lines = re.findall(r"^lookaside.*$", Page(name).commands(), re.MULTILINE)
    assert lines
    for option in re.findall(r"--[a-z-]+", " ".join(lines)):
        assert f"`{option}`" in reference or f"`{option} " in reference, option


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_overview_links_to_the_page_and_has_its_options(name):
    overview = (ROOT / "docs" / "clients.md").read_text()
    row = re.search(rf"^\|.*\(clients/{name}\.md\).*$", overview, re.MULTILINE)
    assert row, f"docs/clients.md has no row for {FOLDER / name}.md"
    for option in Page(name).lease_options():
        assert f"`{option}`" in row[0] or option in re.search(r"`(--leases.*?)`", row[0])[1]
