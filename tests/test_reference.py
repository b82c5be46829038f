"""docs/reference names the flags, metrics and statistics that the programs have, and no others."""

import pytest
from generate_reference import REFERENCE, names_on, pages, without_meaning


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
