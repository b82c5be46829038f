"""How the program of each page of docs/clients is built and started, and the databases that it runs with."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mariadb import PASSWORD, USER
from page import Page
from scripts import BUILT, run


@dataclass(frozen=True)
class Toolchain:
    """`build` are commands that run in the folder of the page's files; `command` starts the program there."""

    build: list[list]
    command: Callable[[Path], list]
    # The form of a database's address by the kind of the database, with `{port}`.
    urls: dict[str, str]


POSTGRES = "postgres:secret@127.0.0.1:{port}/app"
MARIADB = f"{USER}:{PASSWORD}@127.0.0.1:{{port}}/app"

TOOLCHAINS = {
    "csharp": Toolchain(
        [["mcs", "-r:System.Data.dll", "-out:shop.exe", "Cache.cs", "KeyNaming.cs", "Shop.cs"]],
        lambda folder: ["mono", folder / "shop.exe"],
        {
            "mariadb": f"Driver=MariaDB Unicode;Server=127.0.0.1;Port={{port}};Database=app;Uid={USER};Pwd={PASSWORD}",
            "postgres": "Driver=PostgreSQL Unicode;Server=127.0.0.1;Port={port};Database=app;Uid=postgres;Pwd=secret"
            # Without a savepoint for each statement, which would count as a transaction.
            ";Protocol=7.4-1",
        },
    ),
    "go": Toolchain(
        [["go", "build", "-mod=readonly", "-buildvcs=false", "-o", "shop", "."]],
        lambda folder: [folder / "shop"],
        {
            "mariadb": f"{USER}:{PASSWORD}@tcp(127.0.0.1:{{port}})/app",
            "postgres": f"postgres://{POSTGRES}",
        },
    ),
    "java": Toolchain(
        # Jars of other versions would stay in the class path.
        [
            ["rm", "-rf", "target/jars"],
            ["mvn", "-q", "-B", "-ntp", f"-Dmaven.repo.local={BUILT / 'm2'}", "process-classes"],
        ],
        lambda folder: ["java", "-cp", f"{folder}/target/classes:{folder}/target/jars/*", "Shop"],
        {
            "mariadb": f"jdbc:mariadb://127.0.0.1:{{port}}/app?user={USER}&password={PASSWORD}",
            "postgres": "jdbc:postgresql://127.0.0.1:{port}/app?user=postgres&password=secret",
        },
    ),
    "node": Toolchain(
        [
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            # Prisma would fetch an engine for migrations, which the page does not use, from a host of its own.
            [
                "env",
                f"PRISMA_SCHEMA_ENGINE_BINARY={shutil.which('true')}",
                "npx",
                "--no-install",
                "prisma",
                "generate",
                "--schema",
                "schema.prisma",
            ],
        ],
        lambda folder: ["node", folder / "shop.mjs"],
        {"postgres": f"postgres://{POSTGRES}"},
    ),
    "php": Toolchain(
        [],
        lambda folder: ["php", folder / "shop.php"],
        {"mariadb": f"mysql://{MARIADB}", "postgres": f"postgres://{POSTGRES}"},
    ),
    "ruby": Toolchain(
        [],
        lambda folder: ["ruby", folder / "shop.rb"],
        {"mariadb": f"mysql2://{MARIADB}", "postgres": f"postgresql://{POSTGRES}"},
    ),
}

# Building fetches packages when it is done for the first time.
BUILD_S = 500


def build_page(name: str) -> Path:
    """Builds the program of a page; the folder of its files."""
    folder = Page(name).write_files()
    for command in TOOLCHAINS[name].build:
        run(folder, BUILD_S, command)
    return folder
