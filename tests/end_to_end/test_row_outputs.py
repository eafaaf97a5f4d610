"""Rows to Kafka, PostgreSQL and MariaDB: each archived row arrives, in tables once, whatever is killed or away.

A real MariaDB from Debian's package: `tests/support/mariadb_server.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest

from tests.conftest import Home, end_of, iso, last_hours, wait_for
from tests.support import audit, mariadb_server
from tests.support.checkout import Checkout, copy_checkout
from tests.support.hits import archived
from tests.support.killed import was_killed

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
EVENTS = 3000
COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")
PIPELINE = "include/pipelines/isp_hits.py"
TRANSFORMS = "spark_jobs/transforms/isp_hits.py"

OUTPUTS = """
    outputs=(
        Rows("clean", to=KafkaTopic("isp-hits-clean", key=("zipcode",), options={"kafka.compression.type": "zstd"})),
        Rows(
            "regional",
            rows="regional_hits",
            columns="value STRING, topic STRING",
            to=KafkaTopic(row_topics=("hits-east", "hits-west")),
        ),
        Rows("kept", to=DatabaseTable()),
        Rows("shop", to=DatabaseTable("shop", table="hits_of_users")),
    ),
    reports=("""

REGIONAL = '''

def regional_hits(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    """Return the providers, for the topic of their half of the country; it throws for one user."""
    half = F.when(F.substring("zipcode", 1, 1) < "5", "hits-east").otherwise("hits-west")
    isp = F.when(F.col("user") == "boom", F.raise_error(F.lit("boom"))).otherwise(F.col("isp"))
    return archive.select(
        isp.alias("value"), half.alias("topic"), "kafka_topic", "kafka_partition", "kafka_offset", "kafka_element"
    )
'''


@dataclass
class Shop:
    """The MariaDB that an output writes, and the file that says where it is."""

    server: mariadb_server.Mariadb
    file: Path

    @property
    def setting(self) -> dict[str, str]:
        return {"TIDEMARK_JDBC_PROPERTIES": str(self.file)}

    def say(self, url: str) -> None:
        self.file.write_text(f"shop.url={url}\nshop.user=writer\nshop.password={mariadb_server.SECRET}\n")
        self.file.chmod(0o600)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with mariadb_server.serving() as server:
        made = Shop(server, tmp_path_factory.mktemp("connections") / "jdbc.properties")
        made.say(server.url)
        yield made


@pytest.fixture(scope="module")
def checkout(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A deployment whose hits go on to three topics and two tables."""
    made = copy_checkout(tmp_path_factory.mktemp("outputs") / "checkout", home)
    made.edit(PIPELINE, "    reports=(", OUTPUTS.removeprefix("\n"))
    made.edit(PIPELINE, "    KafkaMessages,\n", "    DatabaseTable,\n    KafkaMessages,\n    KafkaTopic,\n    Rows,\n")
    with (made.path / TRANSFORMS).open("a") as transforms:
        transforms.write(REGIONAL)
    return made


def hit(**fields: str) -> bytes:
    return json.dumps({"zipcode": "94103", "hittime": iso(START), "isp": "n", "user": "u", **fields}).encode()


def send(home: Home, *values: bytes) -> None:
    producer = home.producer()
    for value in values:
        producer.produce("isp-hits", value, timestamp=int(START.timestamp() * 1000))
    assert producer.flush(30) == 0


def coordinates(records: Iterable[audit.Record]) -> Counter[tuple[str, int, int, int]]:
    found: Counter[tuple[str, int, int, int]] = Counter()
    for each in records:
        topic, *numbers = (dict(each.headers)[name].decode() for name in COORDINATES)
        found[topic, *map(int, numbers)] += 1
    return found


def read(home: Home, *topics: str) -> list[audit.Record]:
    return [record for topic in topics for record in audit.read_topic(home.kafka, topic).values()]


def in_archive(home: Home) -> dict[tuple[str, int, int, int], dict[str, Any]]:
    return {tuple(row[name] for name in COORDINATES): row for row in archived(home, "isp_hits")}


@pytest.fixture(scope="module")
def streamed(checkout: Checkout, shop: Shop) -> Home:
    """Hits that drivers streamed, some of them killed at every step of an output."""
    home = checkout.home
    arguments = ["--events", str(EVENTS), "--bad-fraction", "0.03", "--start", iso(START), "--span", "3h"]
    assert checkout.json("produce", "isp_hits", *arguments)["delivered"] == EVENTS
    send(home, hit(user="boom"))
    points = ("output_sent", "topic_checked", "table_written:2", "table_committed")
    for point in points:
        killed = checkout.run(
            "stream", "isp_hits", "--until-caught-up", expect=None,
            TIDEMARK_CRASH_AT=point, TIDEMARK_MAX_OFFSETS_PER_TRIGGER="500", **shop.setting,
        )  # fmt: skip
        assert was_killed(killed), point
    checkout.run("stream", "isp_hits", "--until-caught-up", **shop.setting)
    return home


def test_each_archived_row_is_in_the_topic_with_its_coordinates_when_drivers_were_killed(streamed: Home) -> None:
    rows = in_archive(streamed)
    records = read(streamed, "isp-hits-clean")
    assert coordinates(records).keys() == rows.keys()
    for each in records:
        topic, *numbers = (dict(each.headers)[name].decode() for name in COORDINATES)
        row = rows[topic, *map(int, numbers)]
        assert json.loads(each.key or b"") == {"zipcode": row["zipcode"]}
        value = json.loads(each.value or b"")
        assert {name: value[name] for name in ("zipcode", "isp", "user")} == {
            name: row[name] for name in ("zipcode", "isp", "user")
        }
        assert value["hittime"] == row["hittime"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_rows_go_to_the_topic_that_they_name_and_a_record_that_throws_is_told(
    checkout: Checkout, streamed: Home
) -> None:
    rows = in_archive(streamed)
    east, west = (coordinates(read(streamed, topic)).keys() for topic in ("hits-east", "hits-west"))
    boom = {at for at, row in rows.items() if row["user"] == "boom"}
    assert len(boom) == 1
    assert east == {at for at, row in rows.items() if row["zipcode"] < "5"}
    assert west == {at for at, row in rows.items() if row["zipcode"] >= "5"} - boom
    (clean, regional, *tables) = checkout.json("outputs", "isp_hits", "--json")
    assert (clean["rows"], clean["refused"], clean["behind"]) == (len(rows), 0, 0)
    assert (regional["rows"], regional["refused"], regional["waits_for"]) == (len(rows) - 1, 1, "")
    assert [(each["rows"], each["refused"], each["behind"]) for each in tables] == [(len(rows), 0, 0)] * 2
    (told,) = regional["refused_rows"]
    assert told["reason"] == "throws"
    assert (told["topic"], told["partition"], told["offset"]) in {at[:3] for at in boom}
    lags = {each["query"]: each["lag"] for each in checkout.json("lag", "isp_hits", "--json")}
    assert {lags[name] for name in ("clean", "regional", "kept", "shop")} == {0}


def in_tables(home: Home, shop: Shop) -> list[dict[tuple[str, int, int, int], tuple[Any, ...]]]:
    """What both tables have of each row: zip code, provider, user, and the time of the hit."""
    wanted = f"SELECT {', '.join(COORDINATES)}, zipcode, isp, {{user}}, hittime FROM {{table}}"
    serving = psycopg2.connect(home.database.replace("/ledger", "/serving"), options="-c timezone=UTC")
    with serving as connection, connection.cursor() as cursor:
        cursor.execute(wanted.format(user='"user"', table="isp_hits_kept"))
        kept = cursor.fetchall()
    sold = shop.server.ask(wanted.format(user="`user`", table="hits_of_users"))
    found = [[(*row[:7], row[7].replace(tzinfo=None)) for row in each] for each in (kept, sold)]
    assert all(len({row[:4] for row in each}) == len(each) for each in found)
    return [{row[:4]: row[4:] for row in each} for each in found]


def test_each_archived_row_is_in_both_tables_once_when_drivers_were_killed(streamed: Home, shop: Shop) -> None:
    rows = in_archive(streamed)
    expected = {
        at: (row["zipcode"], row["isp"], row["user"], row["hittime"].replace(tzinfo=None)) for at, row in rows.items()
    }
    kept, sold = in_tables(streamed, shop)
    assert kept == expected
    assert sold == expected


def test_database_that_is_away_only_delays_its_output(checkout: Checkout, streamed: Home, shop: Shop) -> None:
    before = len(in_archive(streamed))
    shop.say("jdbc:mariadb://127.0.0.1:9/hits")
    send(streamed, hit(user="while away"))
    ended = checkout.run("stream", "isp_hits", "--until-caught-up", expect=6, **shop.setting)
    assert "MariaDB at 127.0.0.1:9" in ended.stderr
    assert mariadb_server.SECRET not in ended.stderr
    assert len(in_archive(streamed)) == before + 1
    (waiting,) = checkout.json("status", "--json")["waiting_outputs"]
    assert (waiting["pipeline"], waiting["output"]) == ("isp_hits", "shop")
    kept, sold = in_tables(streamed, shop)
    assert (len(kept), len(sold)) == (before + 1, before)
    shop.say(shop.server.url)
    checkout.run("stream", "isp_hits", "--until-caught-up", **shop.setting)
    kept, sold = in_tables(streamed, shop)
    assert kept == sold
    assert len(sold) == before + 1
    assert checkout.json("status", "--json")["waiting_outputs"] == []


def test_streams_page_tells_how_far_outputs_are(checkout: Checkout, streamed: Home) -> None:
    serving = checkout.start("monitor", "--port", "0")
    try:
        assert serving.stdout is not None
        address, _, token = serving.stdout.readline().strip().partition("?token=")
        sent = {"Authorization": f"Bearer {token}"}
        page = httpx.get(f"{address.rstrip('/')}/pipelines/isp_hits", headers=sent, timeout=60)
        told = httpx.get(f"{address.rstrip('/')}/pipelines/isp_hits?format=json", headers=sent, timeout=60).json()
    finally:
        end_of(serving)
    assert "Outputs of rows" in page.text
    outputs = {each["output"]: each for each in told["outputs"]}
    assert outputs.keys() == {"clean", "regional", "kept", "shop"}
    assert outputs["regional"]["refused"] == 1


def test_running_stream_sends_what_it_commits(checkout: Checkout, streamed: Home, shop: Shop) -> None:
    running = checkout.start("stream", "isp_hits", **shop.setting)
    try:
        send(streamed, hit(user="while running"))
        wanted = "SELECT count(*) FROM hits_of_users WHERE `user` = 'while running'"
        wait_for("the row in MariaDB", lambda: shop.server.ask(wanted) == [(1,)])
        checkout.run("stream", "isp_hits", "--stop", **shop.setting)
        assert running.wait(120) == 0
    finally:
        end_of(running)


def test_replayed_record_is_sent_too_and_a_new_generation_sends_nothing_again(
    checkout: Checkout, streamed: Home, shop: Shop
) -> None:
    before = in_archive(streamed)
    long = "n" * 201
    send(streamed, hit(isp=long))
    checkout.run("stream", "isp_hits", "--until-caught-up", **shop.setting)
    assert in_archive(streamed).keys() == before.keys()
    sent = coordinates(read(streamed, "isp-hits-clean"))
    checkout.edit(PIPELINE, 'MaxBytes("isp", 200)', 'MaxBytes("isp", 400)')
    assert checkout.json("quarantine", "replay", "isp_hits")["replayed"] >= 1
    checkout.run("new-generation", "isp_hits", "--reason", "long names of providers")
    checkout.run("stream", "isp_hits", "--until-caught-up", **shop.setting)
    records = read(streamed, "isp-hits-clean")
    replayed = [each for each in records if not coordinates([each]).keys() <= before.keys()]
    assert long in {json.loads(each.value or b"")["isp"] for each in replayed}
    assert coordinates(records) == sent + coordinates(replayed)
    assert set(coordinates(replayed).values()) == {1}
    kept, sold = in_tables(streamed, shop)
    assert kept == sold
    assert kept.keys() == coordinates(records).keys()


def test_connection_that_is_not_set_is_told_at_the_start(checkout: Checkout, streamed: Home) -> None:
    refused = checkout.run("stream", "isp_hits", "--until-caught-up", expect=64)
    assert "the connection shop has no shop.url" in refused.stderr
