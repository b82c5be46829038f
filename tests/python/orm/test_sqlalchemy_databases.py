"""SQLAlchemy with real databases: forms of values, other transactions at the same time, and the invalidator."""

import datetime
import enum
import random
import threading
import uuid
from decimal import Decimal

import pytest
from cached_keys import cached, fill, gone
from expected_keys import TRIGGERS, missing_keys
from lookaside.sqlalchemy import KeysUnknownError, watch
from processes import Invalidator, eventually, stats
from row_rule_keys import delete_by_rule, set_up_rules
from sqlalchemy import (
    CHAR,
    Boolean,
    Date,
    DateTime,
    Enum,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Time,
    TypeDecorator,
    Uuid,
    create_engine,
    delete,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy_shop import Shop, Team, User, members


@pytest.fixture
def shop(database):
    """The shop, with users 1 and 2."""
    shop = Shop(database)
    with shop.transaction() as session:
        session.add_all([User(id=1, email="ada"), User(id=2, email="grace")])
    shop.named()
    yield shop
    shop.close()


def test_an_old_value_is_the_row_s_and_not_the_session_s(shop):
    """Another transaction changes the address between a session's read and its flush. A session that took the old value
    from its memory would not name the key of the address that the row had."""
    with Session(shop.engine) as session:
        user = session.get(User, 1)
        session.commit()
        user = session.get(User, 1)
        assert user.email == "ada"
        session.expunge(user)
        session.rollback()
        with shop.transaction() as other:
            other.get(User, 1).email = "between"
        shop.named()
        session.add(user)
        user.name = "Ada"
        session.commit()
        assert shop.named() == {"user:1", "user_by_email:between"}


def test_a_table_s_columns_of_all_types_have_the_form_of_the_row_rules(database, cluster, tmp_path):
    """The invalidator deletes by a row rule what SQLAlchemy has named: keys are cached with the prefix of the rule."""
    if database.kind == "sqlite":
        pytest.skip("SQLite has no row rules")
    zone = datetime.timezone(datetime.timedelta(hours=2))

    class Base(DeclarativeBase):
        pass

    class Colour(enum.Enum):
        red = 1

    class Lower(TypeDecorator):
        impl = String(40)
        cache_ok = True

        def process_bind_param(self, value, dialect):
            return value.lower()

        def process_result_value(self, value, dialect):
            return value.upper()

    columns = {
        "small": (SmallInteger(), -7),
        "price": (Numeric(10, 2), Decimal("12.5")),
        "label": (String(40), "Zoë-é"),
        "lower": (Lower(), "ABC"),
        "letters": (CHAR(8), "ab"),
        "colour": (Enum(Colour), Colour.red),
        "bytes": (LargeBinary(20), b"\x00\xff\x0a"),
        "at": (DateTime(timezone=True), datetime.datetime(2026, 11, 22, 9, 5, 1, tzinfo=zone)),
        "local": (DateTime(), datetime.datetime(2026, 11, 22, 9, 5, 1)),
        "clock": (Time(), datetime.time(9, 5)),
        "day": (Date(), datetime.date(2026, 1, 2)),
        "is_new": (Boolean(), True),
        "wide": (String(40).with_variant(CHAR(8), "postgresql"), "ab"),
        "token": (Uuid(), uuid.UUID("8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa")),
        "absent": (Integer(), None),
    }

    attributes = {name: mapped_column(type_, nullable=True) for name, (type_, _) in columns.items()}
    Row = type(
        "Row",
        (Base,),
        {
            "__tablename__": "all_types",
            "__lookaside_keys__": [f"orm:{name}:{{{name}}}" for name in columns],
            "id": mapped_column(Integer, primary_key=True),
            **attributes,
        },
    )
    engine = create_engine(database.url)
    Base.metadata.create_all(engine)
    outbox = {"by": "outbox"} if database.kind == "postgres" else {}
    watch(engine, Base, **outbox)
    rules = set_up_rules(database, tmp_path, "all_types", list(columns))
    daemon = Invalidator(database.source, [cluster], tmp_path / "state", tmp_path, "--rules", str(rules))
    try:
        with Session(engine) as session:
            row = Row(id=1, **{name: value for name, (_, value) in columns.items()})
            session.add(row)
            session.commit()
            quote = engine.dialect.identifier_preparer.quote
            named = session.execute(text(f"SELECT {quote('key')} FROM lookaside_outbox")).scalars().all()
            named = {key.decode() if isinstance(key, bytes) else key for key in named}
            assert len(named) == len(columns) - 1, named

            def delete_row():
                session.delete(row)
                session.commit()

            delete_by_rule(daemon, cluster, named, delete_row)
    finally:
        daemon.stop()
        engine.dispose()


@pytest.mark.filterwarnings("ignore:DELETE statement")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_transactions_at_the_same_time_name_what_triggers_see(shop):
    """Threads change the same few rows in every way. Each transaction has named at least the keys that a trigger, which
    sees the rows as they truly were and are, computes for it."""
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(TRIGGERS.replace("TABLE_NAME", "users"))
    commits = [0] * 4

    def change(number: int) -> None:
        chance = random.Random(number)
        for step in range(40):
            name = f"{number}-{step}"
            with Session(shop.engine) as session:
                try:
                    users = session.scalars(select(User).order_by(shuffled(chance))).all()
                    match chance.randrange(6):
                        case 0:
                            session.add(User(email=name))
                        case 1 if users:
                            session.delete(users[0])
                        case 2 if users:
                            users[0].email = name
                        case 3:
                            for user in users[:3]:
                                user.name = name
                        case 4:
                            session.execute(update(User).where(User.id % 2 == step % 2).values(email=User.email + "x"))
                        case 5:
                            session.execute(delete(User).where(User.email.like(f"%{chance.randrange(10)}x")))
                    if chance.random() < 0.2:
                        with session.begin_nested() as savepoint:
                            session.add(User(email=f"{name}-nested"))
                            session.flush()
                            savepoint.rollback()
                    session.commit()
                    commits[number] += 1
                # Deadlocks, rows that are gone, and rows that were added while keys were read.
                except (DBAPIError, StaleDataError, KeysUnknownError):
                    session.rollback()

    threads = [threading.Thread(target=change, args=(number,)) for number in range(len(commits))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert min(commits) > 10, commits
    with shop.engine.connect() as connection:
        assert missing_keys(connection.connection.cursor()) == []


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_rows_that_refer_to_a_changed_one_are_inserted_meanwhile(shop):
    """As without the extension: locks are no stronger than those of the statement."""
    with shop.transaction() as session:
        session.add_all([Team(id=7, name="blue"), Team(id=8, name="red")])
    for team, change in (
        (7, lambda session: session.execute(update(User).where(User.email.like("a%")).values(name="x"))),
        (8, lambda session: setattr(session.get(User, 1), "name", "y")),
    ):
        with Session(shop.engine) as session, shop.engine.begin() as other:
            change(session)
            session.flush()
            other.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
            other.execute(insert(members).values(user_id=1, team_id=team))
            session.commit()
    # A row whose keys change, or that goes, is locked as the statement will lock it.
    locks = statements_of(shop, update(User).values(email=User.email + "x"), delete(User).where(User.email == "none"))
    assert [lock for lock in locks if "FOR NO KEY" in lock] == [] and len(locks) == 2


def statements_of(shop, *changes) -> list[str]:
    """The SELECTs that lock before statements."""
    shop.statements.clear()
    with shop.transaction() as session:
        for change in changes:
            session.execute(change)
    return [statement for statement in shop.statements if "FOR " in statement]


def shuffled(chance):
    """An order that differs from thread to thread."""
    return (User.id * chance.randrange(1, 1000)) % 101


def test_an_application_s_commits_empty_the_cache(database, cluster, invalidator):
    shop = Shop(database, by="message")
    try:
        with shop.transaction() as session:
            session.add_all([User(id=1, email="ada"), User(id=2, email="grace"), Team(id=7, name="blue")])
        keys = ["user:1", "user_by_email:ada", "user_by_email:countess", "user:2", "team:7", "all_teams"]
        eventually(lambda: int(stats(invalidator.port)["invalidations_total"]) >= 6, "the inserts have been applied")
        fill([cluster], keys)
        with shop.transaction() as session:
            session.get(User, 1).email = "countess"
        gone([cluster], keys[:3])
        eventually(lambda: int(stats(invalidator.port)["invalidations_total"]) == 9, "all deletes are counted")
        with Session(shop.engine) as session:
            session.get(User, 2).email = "withdrawn"
            session.flush()
            session.rollback()
        # The log is in order: when a later commit has been applied, an earlier one would have been.
        with shop.transaction() as session:
            session.get(Team, 7).name = "navy"
        gone([cluster], ["team:7", "all_teams"])
        assert cached([cluster], ["user:2"]) == {("one", "user:2")}
        eventually(lambda: int(stats(invalidator.port)["invalidations_total"]) == 11, "two more")
    finally:
        shop.close()
