"""Classes and tables of a small shop, with keys."""

import contextlib

from lookaside.sqlalchemy import watch
from sqlalchemy import Column, ForeignKey, String, Table, create_engine, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship


class Base(DeclarativeBase):
    """All classes of the shop."""


members = Table(
    "members",
    Base.metadata,
    Column("user_id", ForeignKey("users.id"), primary_key=True),
    Column("team_id", ForeignKey("teams.id"), primary_key=True),
    info={"lookaside_keys": ["teams_of:{user_id}", "members_of:{team_id}"]},
)


class User(Base):
    """A user, who may be an employee."""

    __tablename__ = "users"
    __lookaside_keys__ = ["user:{id}", "user_by_email:{email}"]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "user"}
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    email: Mapped[str] = mapped_column(String(300), unique=True)
    name: Mapped[str] = mapped_column(String(40), default="")
    teams: Mapped[list["Team"]] = relationship(secondary=members)


class Employee(User):
    """A user with a row in another table, too."""

    __tablename__ = "employees"
    __mapper_args__ = {"polymorphic_identity": "employee"}
    id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    salary: Mapped[int] = mapped_column(default=0)


class Team(Base):
    """A team; all keys are known without reading a row."""

    __tablename__ = "teams"
    __lookaside_keys__ = ["team:{id}", "all_teams"]
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40))


class Shop:
    """A watched engine, and what its transactions named."""

    def __init__(self, database, **options) -> None:
        self.engine = create_engine(database.url)
        Base.metadata.create_all(self.engine)
        self.outbox = "lookaside_journal" if database.kind == "sqlite" else "lookaside_outbox"
        if database.kind == "postgres":
            options.setdefault("by", "outbox")
        self.watcher = watch(self.engine, Base, **options)
        self.statements: list[str] = []
        event.listen(self.engine, "before_cursor_execute", self.record)

    def record(self, _connection, _cursor, statement, *_others) -> None:
        """Keeps the SQL of each statement."""
        self.statements.append(statement)

    @contextlib.contextmanager
    def transaction(self):
        """A session that commits."""
        with Session(self.engine) as session, session.begin():
            yield session

    def named(self) -> set[str]:
        """The keys that committed transactions have named since the last call."""
        quote = self.engine.dialect.identifier_preparer.quote
        with self.engine.begin() as connection:
            keys = connection.execute(text(f"SELECT {quote('key')} FROM {self.outbox}")).scalars().all()
            connection.execute(text(f"DELETE FROM {self.outbox}"))
        return {key.decode() if isinstance(key, bytes) else key for key in keys}

    def close(self) -> None:
        """Closes all connections."""
        self.engine.dispose()
