"""The snippets of docs/clients/python_orm.md run, and name the keys that the page shows after them."""

import re

import django_project
import pytest
from django.apps import apps
from django.db import connection
from lookaside.django.compilers import Namer
from lookaside.django.watched_models import WatchedModels
from processes import ROOT
from sqlalchemy import create_engine, text

PAGE = (ROOT / "docs" / "clients" / "python_orm.md").read_text()
KEYS = re.compile(r"^# (\S+:\S+ .*|\S+)$", re.MULTILINE)


def snippets(heading: str) -> list[str]:
    """The code of a section."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def expected_keys(snippet: str) -> set[str]:
    """The keys in the comment at the end of a snippet."""
    return set(KEYS.findall(snippet)[-1].split())


def test_the_snippets_of_sqlalchemy(journal):
    declaration, *changes = snippets("SQLAlchemy")
    names = {"DATABASE_URL": journal.url, "__name__": "page"}
    exec(declaration, names)
    names["Base"].metadata.create_all(names["engine"])
    reader = create_engine(journal.url)
    for change in changes:
        exec(change, names)
        with reader.begin() as connection:
            named = connection.execute(text("SELECT CAST(key AS TEXT) FROM lookaside_journal")).scalars().all()
            connection.execute(text("DELETE FROM lookaside_journal"))
        assert set(named) == expected_keys(change), change
    assert len(changes) == 4
    names["engine"].dispose()
    reader.dispose()


@pytest.fixture
def installed_again():
    """The extension as it was, afterwards."""
    yield
    django_project.namer.install()


def test_the_snippets_of_django(journal, installed_again):
    settings, models, *changes = snippets("Django")
    project = django_project.Project(journal)
    # The test's project has an application of another name.
    names = {"__name__": "django_shop.page"}
    exec(models, names)
    with connection.schema_editor() as editor:
        for model in ("List", "Customer"):
            editor.create_model(names[model])
    exec(settings, names)
    declared = {label.replace("shop.", "django_shop.", 1): keys for label, keys in names["LOOKASIDE"]["KEYS"].items()}
    namer = Namer(WatchedModels(apps, declared), django_project.namer.naming, "message")
    namer.install()
    apps.get_app_config("lookaside").namer, before = namer, apps.get_app_config("lookaside").namer
    try:
        for change in changes:
            exec(change, names)
            assert project.named() == expected_keys(change), change
    finally:
        apps.get_app_config("lookaside").namer = before
    assert len(changes) == 4
    project.close()
