"""Messages for producers: the same, however the driver takes them from Spark."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.kafka_source import held_messages_of, messages_of

pytestmark = pytest.mark.spark

MESSAGES = [
    ("counts", '{"zip":"é"}', '{"n":1}'),
    ("counts", None, '{"n":2}'),
    ("others", "deleted", None),
    ("others", "", ""),
]


@pytest.mark.parametrize("take", [messages_of, held_messages_of])
def test_keys_and_values_are_bytes_or_null_when_the_driver_takes_messages(spark: Any, take: Any) -> None:
    frame = frame_of(spark, MESSAGES, "topic STRING, key STRING, value STRING").repartition(3)
    wanted = [tuple(text.encode() if text is not None else None for text in each[1:]) for each in MESSAGES]
    found = [message[1:] for message in take(frame)]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert {message[0] for message in take(frame)} == {"counts", "others"}
    assert {type(part) for message in found for part in message} == {bytes, type(None)}
    assert list(take(frame.where("topic = 'none'"))) == []
