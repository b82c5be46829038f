"""SQLAlchemy names the keys of what it writes, in the transaction that writes it."""

import asyncio

import pytest
from lookaside.sqlalchemy import InvalidKeyError, KeysUnknownError, KeysUnknownWarning, watch
from sqlalchemy import (
    Float,
    ForeignKey,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy_shop import Base, Employee, Shop, Team, User, members


@pytest.fixture
def shop(journal):
    """The shop on SQLite, with user 1 and team 7."""
    shop = Shop(journal)
    with shop.transaction() as session:
        session.add_all([User(id=1, email="ada", name="Ada"), Team(id=7, name="blue")])
    assert shop.named() == {"user:1", "user_by_email:ada", "team:7", "all_teams"}
    yield shop
    shop.close()


def test_new_rows_name_their_keys(shop):
    with shop.transaction() as session:
        # The database chooses the primary keys.
        session.add_all([User(email="grace"), User(email="barbara")])
    assert shop.named() == {"user:2", "user_by_email:grace", "user:3", "user_by_email:barbara"}


def test_an_update_names_the_keys_of_the_row_as_it_was_and_as_it_is(shop):
    with shop.transaction() as session:
        session.get(User, 1).email = "countess"
    assert shop.named() == {"user:1", "user_by_email:ada", "user_by_email:countess"}
    with shop.transaction() as session:
        session.get(User, 1).name = "Augusta"
    assert shop.named() == {"user:1", "user_by_email:countess"}


def test_an_expired_attribute_that_is_overwritten_has_an_old_value(shop):
    """The session has no old value then: it was never loaded."""
    with Session(shop.engine) as session:
        user = session.get(User, 1)
        session.commit()
        user.email = "countess"
        session.commit()
    assert shop.named() == {"user:1", "user_by_email:ada", "user_by_email:countess"}


def test_a_primary_key_that_changes_names_both(shop):
    with shop.transaction() as session:
        session.get(User, 1).id = 50
    assert shop.named() == {"user:1", "user:50", "user_by_email:ada"}
    with shop.transaction() as session:
        session.execute(update(Team).where(Team.id == 7).values(id=8))
    assert shop.named() == {"team:7", "team:8", "all_teams"}


def test_a_delete_names_the_keys_of_the_row(shop):
    with shop.transaction() as session:
        session.delete(session.get(User, 1))
    assert shop.named() == {"user:1", "user_by_email:ada"}


def test_relationships_name_the_keys_of_their_table(shop):
    with shop.transaction() as session:
        user, team = session.get(User, 1), session.get(Team, 7)
        user.teams.append(team)
    assert shop.named() == {"teams_of:1", "members_of:7"}
    with shop.transaction() as session:
        user = session.get(User, 1)
        user.teams.clear()
    assert shop.named() == {"teams_of:1", "members_of:7"}


def test_a_class_with_two_tables_names_its_keys_for_a_change_of_either(shop):
    with shop.transaction() as session:
        session.add(Employee(id=9, email="eve"))
    assert shop.named() == {"user:9", "user_by_email:eve"}
    with shop.transaction() as session:
        session.get(Employee, 9).salary = 100
    assert shop.named() == {"user:9", "user_by_email:eve"}
    with shop.transaction() as session:
        session.execute(update(User).where(User.id == 9).values(email="evelyn"))
    assert shop.named() == {"user:9", "user_by_email:eve", "user_by_email:evelyn"}
    with shop.transaction() as session:
        session.delete(session.get(Employee, 9))
    assert shop.named() == {"user:9", "user_by_email:evelyn"}


def test_rows_that_the_database_deletes_or_changes_with_a_row_name_their_keys(journal):
    """Only the DELETE of the shelf is a statement: the database does the rest."""
    Shop(journal).close()

    class Own(DeclarativeBase):
        pass

    class Shelf(Own):
        __tablename__ = "shelves"
        id: Mapped[int] = mapped_column(primary_key=True)
        within: Mapped[int | None] = mapped_column(ForeignKey("shelves.id", ondelete="CASCADE"))

    class Book(Own):
        __tablename__ = "books"
        __lookaside_keys__ = ["book:{id}", "books_of:{shelf}"]
        id: Mapped[int] = mapped_column(primary_key=True)
        shelf: Mapped[int] = mapped_column(ForeignKey("shelves.id", ondelete="CASCADE"))

    class Loan(Own):
        __tablename__ = "loans"
        __lookaside_keys__ = ["loan:{id}", "loans_of:{book}"]
        id: Mapped[int] = mapped_column(primary_key=True)
        book: Mapped[int | None] = mapped_column(ForeignKey("books.id", ondelete="SET NULL"))

    engine = create_engine(journal.url)
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    Own.metadata.create_all(engine)
    rows = [Shelf(id=1), Shelf(id=2, within=1), Shelf(id=3), Book(id=4, shelf=2), Book(id=5, shelf=3)]
    with Session(engine) as session:
        for row in [*rows, Loan(id=6, book=4), Loan(id=7, book=5)]:
            session.add(row)
            session.flush()
        session.commit()
    watch(engine, Own)
    with Session(engine) as session:
        session.execute(delete(Shelf).where(Shelf.id == 1))
        session.commit()
        named = session.execute(text("SELECT CAST(key AS TEXT) FROM lookaside_journal")).scalars().all()
        assert set(named) == {"book:4", "books_of:2", "loan:6", "loans_of:4"}
        assert session.scalars(select(Loan.book).order_by(Loan.id)).all() == [None, 5]
    engine.dispose()


def test_statements_for_many_rows_name_all_keys(shop):
    with shop.transaction() as session:
        rows = [{"id": 2, "kind": "user", "email": "b"}, {"id": 3, "kind": "user", "email": "c"}]
        session.execute(insert(User), rows)
    assert shop.named() == {"user:2", "user_by_email:b", "user:3", "user_by_email:c"}
    with shop.transaction() as session:
        # The new values are known to the database alone.
        session.execute(update(User).where(User.id > 1).values(email=User.email + "@example.org"))
    ends = {"user_by_email:b@example.org", "user_by_email:c@example.org"}
    assert shop.named() == {"user:2", "user_by_email:b", "user:3", "user_by_email:c"} | ends
    with shop.transaction() as session:
        session.execute(update(User), [{"id": 2, "email": "x"}, {"id": 3, "email": "y"}])
    assert shop.named() == {"user:2", "user:3", "user_by_email:x", "user_by_email:y"} | ends
    with shop.transaction() as session:
        session.execute(delete(User).where(User.email.in_(select(func.lower(literal("X"))))))
    assert shop.named() == {"user:2", "user_by_email:x"}


def test_inserts_whose_primary_keys_the_database_chooses(shop):
    with shop.transaction() as session:
        rows = [{"kind": "user", "email": "b"}, {"kind": "user", "email": "c"}]
        assert session.scalars(insert(User).returning(User.email), rows).all() == ["b", "c"]
        session.execute(insert(Team), [{"name": "red"}, {"name": "green"}])
    expected = {"user:2", "user_by_email:b", "user:3", "user_by_email:c", "team:8", "team:9", "all_teams"}
    assert shop.named() == expected


def test_the_older_methods_for_many_rows_are_seen(shop):
    with shop.transaction() as session:
        session.bulk_save_objects([User(email="b"), User(email="c")])
        session.bulk_insert_mappings(Team, [{"name": "red"}, {"name": "green"}])
    expected = {"user:2", "user_by_email:b", "user:3", "user_by_email:c", "team:8", "team:9", "all_teams"}
    assert shop.named() == expected
    with shop.transaction() as session:
        session.bulk_update_mappings(User, [{"id": 1, "email": "a"}, {"id": 2, "email": "bb"}])
    emails = {f"user_by_email:{email}" for email in ("ada", "a", "b", "bb")}
    assert shop.named() == {"user:1", "user:2"} | emails


def test_connections_without_a_session_are_seen(shop):
    with shop.engine.begin() as connection:
        connection.execute(insert(members).values(user_id=1, team_id=7))
        connection.execute(User.__table__.update().values(name="all"))
        by_email = User.__table__.update().where(User.__table__.c.email == bindparam("old"))
        connection.execute(by_email, [{"old": "ada", "email": "a"}, {"old": "no such", "email": "b"}])
        connection.execute(User.__table__.delete().where(User.__table__.c.email == "a"))
    named = {"teams_of:1", "members_of:7", "user:1", "user_by_email:ada", "user_by_email:a"}
    assert shop.named() == named


def test_what_is_rolled_back_names_nothing(shop):
    with Session(shop.engine) as session:
        session.get(User, 1).email = "countess"
        session.flush()
        session.rollback()
    assert shop.named() == set()
    with shop.transaction() as session:
        with session.begin_nested() as savepoint:
            session.get(User, 1).email = "countess"
            session.flush()
            savepoint.rollback()
        session.get(Team, 7).name = "navy"
    assert shop.named() == {"team:7", "all_teams"}


def test_keys_of_integers_of_the_primary_key_are_known_without_reading(shop):
    with shop.transaction() as session:
        team = session.get(Team, 7)
        shop.statements.clear()
        team.name = "navy"
        session.flush()
        assert [statement.split()[0] for statement in shop.statements] == ["UPDATE", "INSERT"]
    shop.statements.clear()
    with shop.transaction() as session:
        session.execute(delete(Team).where(Team.id == 7))
    assert [statement.split()[0] for statement in shop.statements] == ["DELETE", "INSERT"]


def test_a_row_whose_key_no_router_accepts_is_written_without_it(shop, caplog):
    emails = ("two words", "bell\x07", "x" * 240, "")
    for number, email in enumerate(emails, 10):
        with shop.transaction() as session:
            session.add(User(id=number, email=email))
        assert shop.named() == {f"user:{number}"} | ({"user_by_email:"} if email == "" else set())
    assert shop.watcher.statistics.keys_refused == 3 == len(caplog.messages)
    assert caplog.messages[0].startswith("User: a row has a key under which nothing can be cached: ")
    with shop.transaction() as session:
        assert {user.email for user in session.scalars(select(User))} >= set(emails)


# The rows are changed, and then their keys cannot be known.
MOVED = update(Team).values(id=Team.id + 100)


def test_a_program_that_ignores_such_an_error_cannot_commit_the_row(shop):
    with Session(shop.engine) as session:
        with pytest.raises(KeysUnknownError):
            session.execute(MOVED)
        with pytest.raises(KeysUnknownError, match="rolled back: Team: .*primary key by an expression"):
            session.commit()
    assert shop.named() == set()
    with shop.transaction() as session:
        session.get(Team, 7).name = "navy"
    assert shop.named() == {"team:7", "all_teams"}


def test_a_savepoint_that_is_rolled_back_takes_such_an_error_with_it(shop):
    with shop.transaction() as session:
        with pytest.raises(KeysUnknownError), session.begin_nested():
            session.execute(MOVED)
        session.get(Team, 7).name = "navy"
    assert shop.named() == {"team:7", "all_teams"}
    with Session(shop.engine) as session:
        with pytest.raises(KeysUnknownError):
            session.execute(MOVED)
        session.begin_nested().rollback()
        with pytest.raises(KeysUnknownError, match="rolled back"):
            session.commit()


def test_a_row_that_has_such_a_key_already_can_be_mended(shop):
    with shop.engine.begin() as connection:
        connection.execute(text("UPDATE users SET email = 'two words'"))
    with shop.transaction() as session:
        session.get(User, 1).name = "Augusta"
    assert shop.named() == {"user:1"}
    with shop.transaction() as session:
        session.get(User, 1).email = "ada"
    assert shop.named() == {"user:1", "user_by_email:ada"}
    assert shop.watcher.statistics.keys_refused == 2


UNKNOWN = {
    "a select": lambda: insert(Team).from_select(["name"], select(literal("red"))),
    "an upsert": lambda: sqlite.insert(Team).values(id=7, name="x").on_conflict_do_update(set_={"name": "y"}),
    "a replacement": lambda: insert(Team).prefix_with("OR REPLACE").values(id=7, name="x"),
    "rows without primary keys": lambda: insert(Team).values([{"name": "red"}, {"name": "green"}]),
    "a returned row": lambda: insert(Team).values(name="red").returning(Team.name),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_statements_whose_keys_cannot_be_known_are_refused(shop, why):
    with pytest.raises(KeysUnknownError, match="(?i)team"), shop.transaction() as session:
        session.execute(UNKNOWN[why]())
    assert shop.watcher.statistics.statements_unknown == 1


def test_a_statement_after_one_that_failed_has_its_own_keys(journal):
    shop = Shop(journal, on_unknown="warn")
    with shop.transaction() as session:
        session.add_all([Team(id=7, name="blue"), Team(id=8, name="red")])
        session.flush()
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(update(Team).where(Team.id == 8).values(id=7))
        shop.watcher.statistics.keys_named = 0
        with pytest.warns(KeysUnknownWarning) as warned:
            session.execute(insert(Team).from_select(["name"], select(literal("green"))))
    assert len(warned) == 1 and shop.watcher.statistics.keys_named == 0
    shop.close()


def test_such_statements_are_counted_where_that_was_chosen(journal):
    shop = Shop(journal, on_unknown="warn")
    with pytest.warns(KeysUnknownWarning), shop.transaction() as session:
        session.execute(UNKNOWN["an upsert"]())
    assert shop.watcher.statistics.statements_unknown == 1
    shop.close()


def test_an_insert_that_ignores_conflicts_changes_no_row_that_exists(shop):
    with shop.transaction() as session:
        session.execute(sqlite.insert(Team).values(id=7, name="x").on_conflict_do_nothing())
    assert shop.named() <= {"team:7", "all_teams"}


def test_one_statement_changes_a_bounded_number_of_rows(journal):
    shop = Shop(journal, rows_max=2)
    with shop.transaction() as session:
        session.add_all([User(email=str(index)) for index in range(3)])
    with pytest.raises(KeysUnknownError, match="over 2 rows"), shop.transaction() as session:
        session.execute(update(User).values(name="x"))
    shop.close()


def test_autocommit_is_refused(shop):
    """A crash between the statement and its keys would lose them."""
    with (
        shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(RuntimeError, match="AUTOCOMMIT"),
    ):
        connection.execute(delete(Team))


def test_further_keys_are_named_by_hand(shop):
    with shop.transaction() as session:
        shop.watcher.name_keys(session, "front_page", "list:users")
        with pytest.raises(InvalidKeyError):
            shop.watcher.name_keys(session, "two words")
    assert shop.named() == {"front_page", "list:users"}


def test_a_watcher_that_is_stopped_names_nothing(shop):
    other = watch(shop.engine, Base)
    other.stop()
    with shop.transaction() as session:
        session.get(Team, 7).name = "green"
    assert shop.named() == {"team:7", "all_teams"}
    shop.watcher.stop()
    with shop.transaction() as session:
        session.get(Team, 7).name = "navy"
    assert shop.named() == set()


def test_a_wrong_declaration_is_an_error_that_names_it():
    engine = create_engine("sqlite://")
    wrong = {
        "no such column": (["user:{identity}"], r"Model.*'identity'.*columns are id, ratio"),
        "a single brace": (["user:{id"], r"Model.*single '\{'"),
        "a floating-point number": (["by:{ratio}"], r"Model.*models.ratio.*several texts"),
        "a text in place of a list": ("user:{id}", "Model.*expected a list"),
    }
    for keys, message in wrong.values():

        class Own(DeclarativeBase):
            pass

        class Model(Own):
            __tablename__ = "models"
            __lookaside_keys__ = keys
            id: Mapped[int] = mapped_column(primary_key=True)
            ratio: Mapped[float] = mapped_column(Float)

        with pytest.raises(ValueError, match=message):
            watch(engine, Own)

    class Empty(DeclarativeBase):
        pass

    with pytest.raises(ValueError, match="no class of Empty"):
        watch(engine, Empty)


def test_asynchronous_sessions_name_keys(journal):
    Shop(journal).close()

    async def change():
        engine = create_async_engine(journal.url.replace("sqlite:", "sqlite+aiosqlite:"))
        watcher = watch(engine, Base)
        async with AsyncSession(engine) as session, session.begin():
            session.add_all([User(email="ada"), Team(name="blue")])
            await session.flush()
            await session.execute(update(User).values(email="countess"))
            await session.run_sync(watcher.name_keys, "front_page")
        await engine.dispose()

    asyncio.run(change())
    shop = Shop(journal)
    named = {"user:1", "user_by_email:ada", "user_by_email:countess", "team:1", "all_teams", "front_page"}
    assert shop.named() == named
    shop.close()
