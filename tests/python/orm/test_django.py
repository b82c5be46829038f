"""Django names the keys of what its ORM writes, in the transaction that writes it."""

import dataclasses

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat, Upper
from django.test.utils import CaptureQueriesContext
from django_project import Project, namer
from django_shop.models import Employee, Post, Team, User
from lookaside.django import InvalidKeyError, KeysUnknownError, KeysUnknownWarning, name_keys, statistics
from lookaside.django.watched_models import WatchedModels


@pytest.fixture
def project(journal):
    """The project on SQLite, with user 1 and team 7."""
    project = Project(journal)
    User.objects.create(id=1, email="ada", name="Ada")
    Team.objects.create(id=7, name="blue")
    assert project.named() == {"user:1", "user_by_email:ada", "team:7", "all_teams"}
    yield project
    project.close()


def test_save_names_the_keys_of_the_row_as_it_was_and_as_it_is(project):
    user = User(email="grace")
    user.save()
    assert project.named() == {f"user:{user.pk}", "user_by_email:grace"}
    user.email = "hopper"
    user.save()
    assert project.named() == {f"user:{user.pk}", "user_by_email:grace", "user_by_email:hopper"}
    user.name = "Grace"
    user.save(update_fields=["name"])
    assert project.named() == {f"user:{user.pk}", "user_by_email:hopper"}
    # The row, not the object, has the old value.
    User(id=user.pk, email="admiral").save()
    assert project.named() == {f"user:{user.pk}", "user_by_email:hopper", "user_by_email:admiral"}


def test_a_query_s_update_names_all_keys(project):
    User.objects.create(id=2, email="bea")
    project.named()
    User.objects.filter(name="").update(email=Upper("email"))
    assert project.named() == {"user:2", "user_by_email:bea", "user_by_email:BEA"}
    User.objects.order_by("name").update(email=Concat(F("email"), Value("@x")))
    emails = {f"user_by_email:{email}" for email in ("ada", "ada@x", "BEA", "BEA@x")}
    assert project.named() == {"user:1", "user:2"} | emails
    assert User.objects.filter(name="no such user").update(email="x") == 0
    assert project.named() == set()
    Team.objects.filter(id=7).update(id=8)
    assert project.named() == {"team:7", "team:8", "all_teams"}


def test_methods_for_many_objects(project):
    users = User.objects.bulk_create([User(email="b"), User(email="c")])
    assert project.named() == {"user:2", "user_by_email:b", "user:3", "user_by_email:c"}
    users[0].email, users[1].email = "bb", "cc"
    User.objects.bulk_update(users, ["email"])
    emails = {f"user_by_email:{email}" for email in ("b", "bb", "c", "cc")}
    assert project.named() == {"user:2", "user:3"} | emails
    User.objects.filter(email__endswith="c").delete()
    assert project.named() == {"user:3", "user_by_email:cc"}
    User.objects.get_or_create(email="d")
    User.objects.update_or_create(email="bb", defaults={"email": "e"})
    assert project.named() == {"user:2", "user:4", "user_by_email:d", "user_by_email:bb", "user_by_email:e"}


def test_many_to_many_fields_name_the_keys_of_their_table(project):
    User.objects.get(id=1).teams.add(7)
    assert project.named() == {"teams_of:1", "members_of:7"}
    User.objects.get(id=1).teams.clear()
    assert project.named() == {"teams_of:1", "members_of:7"}


def test_what_django_deletes_or_changes_with_a_row_names_its_keys_too(project):
    Post.objects.create(id=5, author_id=1, team_id=7, text="first")
    assert project.named() == {"post:5", "posts_of:1", "posts_of_team:7"}
    Team.objects.get(id=7).delete()
    assert project.named() == {"team:7", "all_teams", "post:5", "posts_of:1", "posts_of_team:7"}
    User.objects.get(id=1).delete()
    assert project.named() == {"user:1", "user_by_email:ada", "post:5", "posts_of:1"}


def test_a_model_with_two_tables_names_its_keys_for_a_change_of_either(project):
    employee = Employee.objects.create(email="eve", salary=1)
    keys = {f"user:{employee.pk}", "user_by_email:eve"}
    assert project.named() == keys
    Employee.objects.update(salary=2)
    assert project.named() == keys
    Employee.objects.update(email="evelyn")
    assert project.named() == keys | {"user_by_email:evelyn"}
    Employee.objects.get().delete()
    assert project.named() == {f"user:{employee.pk}", "user_by_email:evelyn"}


def test_what_is_rolled_back_names_nothing(project):
    with transaction.atomic():
        Team.objects.filter(id=7).update(name="navy")
        savepoint = transaction.savepoint()
        User.objects.filter(id=1).update(email="countess")
        transaction.savepoint_rollback(savepoint)
    assert project.named() == {"team:7", "all_teams"}
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        User.objects.filter(id=1).update(email="countess")
        _ = 1 / 0
    assert project.named() == set()


def test_keys_of_integers_of_the_primary_key_are_known_without_reading(project):
    team = Team.objects.get(id=7)
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        team.save()
    verbs = [query["sql"].split()[0] for query in queries]
    assert verbs == ["UPDATE", "INSERT"]


def test_a_row_whose_key_no_router_accepts_is_written_without_it(project, caplog):
    before = statistics().keys_refused
    for number, email in enumerate(("two words", "bell\x07", "x" * 240), 10):
        User.objects.create(id=number, email=email)
        assert project.named() == {f"user:{number}"}
    assert statistics().keys_refused == before + 3 and User.objects.count() == 4
    assert caplog.messages[0].startswith("django_shop.User: a row has a key under which nothing can be cached: ")


def test_a_row_that_has_such_a_key_already_can_be_mended(project):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_shop_user SET email = 'two words'")
    User.objects.update(name="Augusta")
    assert project.named() == {"user:1"}
    User.objects.update(email="ada")
    assert project.named() == {"user:1", "user_by_email:ada"}


def test_statements_whose_keys_cannot_be_known_are_refused_or_counted(project, monkeypatch):
    before = statistics().statements_unknown
    upsert = dict(update_conflicts=True, unique_fields=["email"], update_fields=["name"])
    with pytest.raises(KeysUnknownError, match="django_shop.User"):
        User.objects.bulk_create([User(email="ada", name="x")], **upsert)
    with pytest.raises(KeysUnknownError, match="django_shop.User"):
        User.objects.bulk_create([User(email="ada", name="x")], ignore_conflicts=True)
    assert project.named() == set()
    monkeypatch.setattr(namer, "naming", dataclasses.replace(namer.naming, on_unknown="warn"))
    with pytest.warns(KeysUnknownWarning):
        User.objects.bulk_create([User(email="ada", name="x")], ignore_conflicts=True)
    assert statistics().statements_unknown == before + 3


def test_one_statement_changes_a_bounded_number_of_rows(project, monkeypatch):
    monkeypatch.setattr(namer, "naming", dataclasses.replace(namer.naming, rows_max=2))
    User.objects.bulk_create([User(email="b"), User(email="c")])
    with pytest.raises(KeysUnknownError, match="over 2 rows"):
        User.objects.update(name="x")
    assert User.objects.filter(name="x").count() == 0


def test_further_keys_are_named_by_hand(project):
    name_keys("front_page", "list:users")
    with pytest.raises(InvalidKeyError), transaction.atomic():
        name_keys("two words")
    assert project.named() == {"front_page", "list:users"}


def test_a_wrong_declaration_is_an_error_that_names_it(monkeypatch):
    wrong = {
        "user:{identity}": r"django_shop.Team: 'identity' is no field.*fields are id, name",
        "user:{id": r"django_shop.Team.*single '\{'",
        "team:{user}": "django_shop.Team: 'user' is no field",
    }
    for template, message in wrong.items():
        monkeypatch.setattr(Team.Lookaside, "keys", [template])
        with pytest.raises(ImproperlyConfigured, match=message):
            WatchedModels(apps, {})
    monkeypatch.setattr(Team.Lookaside, "keys", "team:{id}")
    with pytest.raises(ImproperlyConfigured, match="expected a list"):
        WatchedModels(apps, {})
    monkeypatch.undo()
    with pytest.raises(ImproperlyConfigured, match="no model 'shop.Nothing'"):
        WatchedModels(apps, {"shop.Nothing": ["key"]})
    with pytest.raises(ImproperlyConfigured, match="already"):
        WatchedModels(apps, {"django_shop.team": ["key"]})
