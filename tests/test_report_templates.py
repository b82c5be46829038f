"""The pages of docs/measurements are templates: each field of one must be given, and nothing that it does not have. A
missing one would be noticed only when the measurement, which may take half an hour, is over."""

import ast
import string
from pathlib import Path

import pytest

from experiments.cluster import round_trips

ROOT = Path(__file__).parent.parent


def templates(tree: ast.Module) -> dict[str, str]:
    """The module's constants that are texts, by name."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def fills(path: Path) -> list[tuple[str, set[str], set[str]]]:
    """`NAME.format(field=...)` of the module's own templates: the name, the fields that it has, and those given."""
    tree = ast.parse(path.read_text())
    known, found = templates(tree), []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format"):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id in known):
            continue
        name, given = node.func.value.id, {keyword.arg for keyword in node.keywords}
        if node.args or None in given:
            continue
        fields = {field for _, field, _, _ in string.Formatter().parse(known[name]) if field is not None}
        found.append((name, {field.split(".")[0].split("[")[0] for field in fields}, given))
    return found


FILLS = [
    (str(path.relative_to(ROOT)), *fill)
    for path in sorted((ROOT / "experiments").rglob("*.py"))
    for fill in fills(path)
]


def test_there_are_templates():
    assert len(FILLS) > 5


@pytest.mark.parametrize(("path", "name", "fields", "given"), FILLS, ids=[f"{path}-{name}" for path, name, *_ in FILLS])
def test_each_field_of_a_template_is_given_and_no_other(path, name, fields, given):
    assert fields == given


def test_the_keys_of_a_page_are_the_round_trips_of_a_get_for_each_key():
    def result(page: str, way: str, *round_trips: float) -> dict:
        return {"page": page, "way": way, "pages": 7, "mean_keys": 1.5, "round_trips": round_trips, "us": [1, 2, 3]}

    results = [
        result("request", "KeyByKey", 23.4, 6, 92), result("request", "Plan", 2.3, 2, 5),
        result("popular page", "KeyByKey", 511.9, 281, 1645),
    ]  # fmt: skip
    text = round_trips.report(results, {"kernel": "Linux"})
    assert "7 requests and 7 popular pages" in text
    assert "| request | 23.4 | 92 | a plan | 2.3 | 2 | 5 |" in text
    assert "| popular page | 511.9 | 1645 | a get for each key | 511.9 | 281 | 1645 |" in text
    # The page has the table of this version.
    page = round_trips.REPORT.read_text()
    assert text[: text.index("7 requests")] in page
    assert text[text.index("| page |") : text.index("| request |")] in page
