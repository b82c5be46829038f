"""Django with real databases: forms of values, other transactions at the same time, and the invalidator."""

import datetime
import random
import threading
import uuid
from decimal import Decimal

import pytest
from cached_keys import cached, fill, gone
from django.db import Error, connections, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.test.utils import CaptureQueriesContext
from django_project import ALIAS, Project, namer
from django_shop.models import AllTypes, Team, User
from expected_keys import TRIGGERS, missing_keys
from lookaside.django import KeysUnknownError
from processes import Invalidator, eventually, stats
from row_rule_keys import delete_by_rule, set_up_rules


@pytest.fixture
def project(database):
    """The project on each database."""
    project = Project(database)
    yield project
    project.close()


def test_an_old_value_is_the_row_s_and_not_the_object_s(project):
    """Another process changes the address between the read of an object and its save."""
    User.objects.create(id=1, email="ada")
    user = User.objects.get(id=1)
    User.objects.filter(id=1).update(email="between")
    project.named()
    user.name = "Ada"
    user.save(update_fields=["name"])
    assert project.named() == {"user:1", "user_by_email:between"}


def test_many_objects_with_the_primary_keys_that_the_database_chooses(project):
    users = User.objects.bulk_create([User(email="a"), User(email="b")])
    named = {f"user:{user.pk}" for user in users} | {"user_by_email:a", "user_by_email:b"}
    assert project.named() == named and None not in [user.pk for user in users]
    users[0].teams.add(Team.objects.create(id=7, name="blue"))
    assert project.named() == {f"teams_of:{users[0].pk}", "members_of:7", "team:7", "all_teams"}


def test_columns_of_all_types_have_the_form_of_the_row_rules(database, project, cluster, tmp_path):
    """The invalidator deletes by a row rule what Django has named: each key is cached under the prefix of the rule."""
    if database.kind == "sqlite":
        pytest.skip("SQLite has no row rules")
    names = [template.columns[0] for template in namer.models.of_table(AllTypes)[0].templates]
    rules = set_up_rules(database, tmp_path, "django_shop_alltypes", names)
    daemon = Invalidator(database.source, [cluster], tmp_path / "state", tmp_path, "--rules", str(rules))
    try:
        row = AllTypes.objects.create(
            small=-7,
            price=Decimal("12.5"),
            label="Zoë-é",
            is_new=True,
            at=datetime.datetime(2026, 7, 1, 9, 5, 1, 250_000, tzinfo=datetime.UTC),
            clock=datetime.time(9, 5, 0, 500),
            day=datetime.date(2026, 1, 2),
            token=uuid.UUID("8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa"),
        )
        named = project.named()
        assert len(named) == len(names) - 1, named
        delete_by_rule(daemon, cluster, named, row.delete)
    finally:
        daemon.stop()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_transactions_at_the_same_time_name_what_triggers_see(project):
    """Threads change the same few rows in every way. Each transaction has named at least the keys that a trigger, which
    sees the rows as they truly were and are, computes for it."""
    with project.connection.cursor() as cursor:
        cursor.execute(TRIGGERS.replace("TABLE_NAME", "django_shop_user"))
    commits = [0] * 4

    def change(number: int) -> None:
        chance = random.Random(number)
        for step in range(40):
            try:
                with transaction.atomic():
                    change_users(chance, step, f"{number}-{step}")
                commits[number] += 1
            # Deadlocks, and keys of rows that were added while keys were read.
            except (Error, KeysUnknownError):
                pass
        connections[ALIAS].close()

    threads = [threading.Thread(target=change, args=(number,)) for number in range(len(commits))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert min(commits) > 10, commits
    with project.connection.cursor() as cursor:
        assert missing_keys(cursor) == []


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_rows_that_refer_to_a_changed_one_are_inserted_meanwhile(project):
    """As without the extension: locks are no stronger than those of the statement."""
    User.objects.create(id=1, email="ada")
    other = connections.create_connection(ALIAS)
    try:
        with transaction.atomic():
            User.objects.filter(email__startswith="a").update(name="x")
            with other.cursor() as cursor:
                cursor.execute("SET lock_timeout = '1s'")
                cursor.execute("INSERT INTO django_shop_post (author_id, text) VALUES (1, '')")
    finally:
        other.close()
    # A row whose keys change, or that goes, is locked as the statement will lock it.
    with CaptureQueriesContext(project.connection) as queries:
        User.objects.update(email=Concat(F("email"), Value("x")))
        User.objects.filter(email="none").delete()
    locks = [query["sql"] for query in queries if "FOR " in query["sql"]]
    assert len(locks) >= 2 and not any("FOR NO KEY" in lock for lock in locks), locks


def change_users(chance: random.Random, step: int, name: str) -> None:
    users = list(User.objects.order_by("?"))
    match chance.randrange(6):
        case 0:
            User.objects.create(email=name)
        case 1 if users:
            users[0].delete()
        case 2 if users:
            users[0].email = name
            users[0].save()
        case 3:
            for user in users[:3]:
                user.name = name
                user.save(update_fields=["name"])
        case 4:
            User.objects.filter(id__gt=step % 4).update(email=Concat(F("email"), Value("x")))
        case 5:
            User.objects.filter(email__endswith=f"{chance.randrange(10)}x").delete()
    if chance.random() < 0.2:
        savepoint = transaction.savepoint()
        User.objects.create(email=f"{name}-nested")
        transaction.savepoint_rollback(savepoint)


def test_an_application_s_commits_empty_the_cache(database, project, cluster, invalidator, monkeypatch):
    monkeypatch.setattr(namer, "by", "message")
    User.objects.create(id=1, email="ada")
    User.objects.create(id=2, email="grace")
    Team.objects.create(id=7, name="blue")
    keys = ["user:1", "user_by_email:ada", "user_by_email:countess", "user:2", "team:7", "all_teams"]
    eventually(lambda: int(stats(invalidator.port)["invalidations_total"]) >= 6, "the inserts have been applied")
    fill([cluster], keys)
    User.objects.filter(id=1).update(email="countess")
    gone([cluster], keys[:3])
    eventually(lambda: int(stats(invalidator.port)["invalidations_total"]) == 9, "all deletes are counted")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        User.objects.filter(id=2).update(email="withdrawn")
        _ = 1 / 0
    # The log is in order: when a later commit has been applied, an earlier one would have been.
    Team.objects.filter(id=7).update(name="navy")
    gone([cluster], ["team:7", "all_teams"])
    assert cached([cluster], ["user:2"]) == {("one", "user:2")}
    eventually(lambda: int(stats(invalidator.port)["invalidations_total"]) == 11, "two more")
