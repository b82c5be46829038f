"""The documents name the flags, metrics, statistics and messages that the programs have."""

import re

import pytest
from generate_reference import REFERENCE, pages, without_meaning
from processes import ROOT
from reference_pages import names_on


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The pages as `make reference` would write them, by name."""
    return {page.name: page for page in pages(tmp_path_factory.mktemp("reference"))}


@pytest.mark.parametrize("name", ["flags", "metrics", "statistics"])
def test_committed_page_names_what_the_programs_print(generated, name):
    committed, printed = names_on(REFERENCE / f"{name}.md"), generated[name].names()
    assert sorted(committed) == sorted(printed)
    for heading, names in printed.items():
        assert sorted(committed[heading]) == sorted(names), f"{heading}: run `make reference`"


@pytest.mark.parametrize("name", ["flags", "metrics", "statistics"])
def test_every_name_has_a_meaning(generated, name):
    assert without_meaning(generated[name]) == []


def test_troubleshooting_quotes_messages_of_the_programs():
    """Every message in the first column of the page occurs in the sources. `...` stands for a value."""
    source = "".join(path.read_text() for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")))
    source = re.sub(r"\\\n\s*", "", source)
    missing = []
    for line in (ROOT / "docs" / "operating" / "troubleshooting.md").read_text().splitlines():
        cell = re.match(r"\| (.*?) \|", line)
        for message in re.findall(r"`([^`]+)`", cell.group(1)) if cell else []:
            if any(part.strip() not in source for part in message.split("...")):
                missing.append(message)
    assert missing == []
