"""A temporary cluster of Debian's PostgreSQL, on a socket in a temporary folder."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from sqlalchemy import create_engine, text

INSTALLED = Path("/usr/lib/postgresql")


class PostgresMissing(Exception):
    """PostgreSQL is not installed."""


class Postgres:
    """A context manager: `with Postgres() as cluster: cluster.database("x")`. Raises PostgresMissing."""

    def __init__(self) -> None:
        found = sorted(INSTALLED.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
        if not found:
            raise PostgresMissing("PostgreSQL is not installed (Debian, Ubuntu: apt-get install postgresql)")
        self.programs = found[-1].parent

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="baton-pg-"))
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self.folder, "postgres", "postgres")
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off"
        self._run("initdb", "-U", "baton", "-A", "trust", "--no-sync")
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options, "start")
        return self

    def __exit__(self, *_: object) -> None:
        self._run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(self.folder)

    def uri(self, database: str, user: str = "baton") -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def database(self, name: str) -> str:
        """Create an empty database; returns its address."""
        engine = create_engine(self.uri("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.uri(name)

    def _run(self, program: str, *words: str) -> None:
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *words]
        if os.getuid() == 0:
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
