"""Kafka and PostgreSQL that a test process starts once, and lends to one module's home after the other.

Starting both costs some three CPU seconds and, for whoever waits, twice that; emptying them costs a tenth of it. Each
module finds what a home of its own would have: a new folder, the databases as they were prepared, a broker without
topics and consumer groups. They are emptied when they are lent, not when they are given back, so it does not matter
how a module ended; after a failed one, and whenever they cannot be emptied, they are ended and others started.

What they do not share: whatever a test does to the services themselves. Modules that end, pause or configure a
service, look at its files, or start one that keeps things in the others, have the marker `own_services`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg2
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from include.services.process import running
from include.settings import write_private

if TYPE_CHECKING:
    from tests.conftest import Home

UNSAFE = "fsync = off\nsynchronous_commit = off\nfull_page_writes = off\n"
"""Settings of a PostgreSQL whose data is not needed after a kill."""

SECONDS = 30
"""How long emptying may take before new services are started instead."""


class SharedServices:
    """The services, from the first loan until `end`."""

    def __init__(self, new_home: Callable[[], Home], prepared: Path) -> None:
        self._new_home = new_home
        self._prepared = prepared
        self._owner: Home | None = None
        self._borrower: Path | None = None

    def lend(self, path: Path, *services: str) -> None:
        """Make that folder a home in which nothing has happened, whose `services` run."""
        assert self._borrower is None, f"{self._borrower} has the services: make a home of its own for {path}"
        try:
            self._empty(self._running(services), services)
        except (psycopg2.Error, KafkaException, AssertionError):
            self.end()
            self._empty(self._running(services), services)
        left_out = shutil.ignore_patterns("postgres", "kafka", "kafka.json", "postgres.json", "logs")
        shutil.copytree(self._prepared, path, ignore=left_out, dirs_exist_ok=True)
        folder = path / "services"
        client = folder / "kafka.client.properties"
        client.write_text(client.read_text().replace(str(self._prepared), str(path)))
        for name in services:
            state = json.loads((self._running(services).path / "services" / f"{name}.json").read_text())
            write_private(folder / f"{name}.json", json.dumps({**state, "home": str(path)}))
        self._borrower = path

    def give_back(self, *, spoiled: bool) -> None:
        """End what still runs in the folder that has them; after a failure the services, too."""
        path, self._borrower = self._borrower, None
        end_drivers_of(path)
        if spoiled:
            self.end()

    def end(self) -> None:
        if self._owner is not None:
            self._owner.end()
        self._owner = None

    def _running(self, services: tuple[str, ...]) -> Home:
        """The home that the services belong to, started where they do not run."""
        started = [name for name in ("kafka", "postgres") if self._owner is not None and self._state(name)]
        if not all(map(self._runs, started)):
            # A module has ended one of them.
            self.end()
        if self._owner is None:
            self._owner = self._new_home()
            with (self._owner.path / "postgres" / "postgresql.auto.conf").open("a") as settings:
                settings.write(UNSAFE)
        for name in services:
            if not self._runs(name):
                self._owner.run("up", name)
                if name == "postgres":
                    self._keep_templates()
        return self._owner

    def _state(self, name: str) -> dict[str, Any]:
        file = self._owner.path / "services" / f"{name}.json"
        state = json.loads(file.read_text()) if file.exists() else {}
        return state if state.get("pid") else {}

    def _runs(self, name: str) -> bool:
        return running(self._state(name)) is not None

    def _keep_templates(self) -> None:
        with closing(self._administration()) as connection, connection.cursor() as cursor:
            for name in databases(cursor):
                cursor.execute(f"ALTER DATABASE {name} RENAME TO prepared_{name}")
                cursor.execute(f"ALTER DATABASE prepared_{name} IS_TEMPLATE true")

    def _administration(self) -> Any:
        address = re.sub("/ledger$", "/postgres", self._owner.database)
        options = f"-c statement_timeout={SECONDS}s"
        connection = psycopg2.connect(address, connect_timeout=SECONDS, options=options)
        connection.autocommit = True
        return connection

    def _empty(self, owner: Home, services: tuple[str, ...]) -> None:
        if "postgres" in services:
            self._empty_postgres()
        if "kafka" in services:
            empty_kafka(owner.kafka)

    def _empty_postgres(self) -> None:
        with closing(self._administration()) as connection, connection.cursor() as cursor:
            cursor.execute(_END_SESSIONS, (1000 * SECONDS,))
            # Copying one takes a tenth of a second of the processor, and most modules write to one of four.
            cursor.execute(_UNTOUCHED)
            untouched = {name for (name,) in cursor.fetchall()}
            for name in set(databases(cursor)) - untouched:
                cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
            cursor.execute("SELECT rolname FROM pg_roles WHERE rolname !~ '^pg_' AND rolname <> current_user")
            for (name,) in cursor.fetchall():
                cursor.execute(f'DROP ROLE "{name}"')
            cursor.execute("SELECT datname FROM pg_database WHERE datname ~ '^prepared_'")
            prepared = {name.removeprefix("prepared_") for (name,) in cursor.fetchall()}
            for name in prepared - untouched:
                cursor.execute(f"CREATE DATABASE {name} TEMPLATE prepared_{name}")
            # A server that a test kills replays what was written since the last one: a minute, after many modules.
            cursor.execute("CHECKPOINT")


_END_SESSIONS = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
WHERE datname NOT IN ('postgres', 'template0', 'template1') AND pid <> pg_backend_pid()
"""
"""Each has then told what it wrote."""

_UNTOUCHED = """
SELECT copy.datname FROM pg_database copy JOIN pg_database template ON template.datname = 'prepared_' || copy.datname
JOIN pg_stat_database written ON written.datid = copy.oid
WHERE written.tup_inserted + written.tup_updated + written.tup_deleted = 0
  AND (copy.datacl, copy.datdba, copy.datconnlimit, copy.datallowconn)
      IS NOT DISTINCT FROM (template.datacl, template.datdba, template.datconnlimit, template.datallowconn)
  AND NOT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = copy.oid)
"""
"""Copies as they were made: no row of a table or of a catalog was written since, not even in a transaction that was
rolled back, and they have no setting or privilege of their own."""


def databases(cursor: Any) -> list[str]:
    """Names of the databases that are neither templates nor PostgreSQL's own."""
    cursor.execute("SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'")
    return [name for (name,) in cursor.fetchall()]


def empty_kafka(address: str) -> None:
    """Delete all topics but Kafka's own, and all consumer groups.

    Raises KafkaException where one cannot be deleted, AssertionError where a transaction is open.
    """
    from tests.conftest import wait_for

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0, "error_cb": lambda _: None})

    def topics() -> list[str]:
        return [name for name in admin.list_topics(timeout=SECONDS).topics if not name.startswith("__")]

    if existing := topics():
        # Its abort would be written to the next module's topic of the same name.
        assert not open_transactions(admin), "a transaction was left open"
        for deleted in admin.delete_topics(existing, operation_timeout=SECONDS).values():
            deleted.result(SECONDS)
        wait_for("deleted topics to be gone", lambda: not topics(), SECONDS)
    listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS)
    if groups := [each.group_id for each in listed.valid]:
        for deleted in admin.delete_consumer_groups(groups, request_timeout=SECONDS).values():
            deleted.result(SECONDS)


def open_transactions(admin: AdminClient) -> list[TopicPartition]:
    """Topic partitions with records of transactions that nobody has ended."""
    described = admin.list_topics(timeout=SECONDS).topics.values()
    every = [TopicPartition(topic.topic, each) for topic in described for each in topic.partitions]

    def latest(isolation: IsolationLevel) -> dict[TopicPartition, int]:
        asked = admin.list_offsets(dict.fromkeys(every, OffsetSpec.latest()), isolation_level=isolation)
        return {each: found.result(SECONDS).offset for each, found in asked.items()}

    ends, stable = latest(IsolationLevel.READ_UNCOMMITTED), latest(IsolationLevel.READ_COMMITTED)
    return [each for each in every if stable[each] < ends[each]]


def end_drivers_of(path: Path | None) -> None:
    """Kill the commands and drivers of that home folder, which only an interrupted module leaves."""
    mark = f"TIDEMARK_HOME={path}".encode()
    for process in Path("/proc").iterdir():
        # One may end meanwhile, and that of another user is none of ours.
        with suppress(OSError, ValueError, psutil.Error):
            is_ours = any(part in (process / "cmdline").read_bytes() for part in (b"include.cli", b"/spark_jobs/"))
            if is_ours and mark in (process / "environ").read_bytes().split(b"\0"):
                psutil.Process(int(process.name)).kill()
