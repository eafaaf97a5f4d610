"""Topic partitions of keys, against what Kafka's own test of its hash expects."""

from __future__ import annotations

import pytest

from include.kafka.topics import placed_at


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("21", -973932308),
        ("abc", 479470107),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ],
)
def test_key_lies_where_java_s_producer_puts_it(key: str, hashed: int) -> None:
    # Source: UtilsTest.testMurmur2 of Apache Kafka.
    for topic_partitions in (1, 2, 7, 100):
        assert placed_at(key.encode(), topic_partitions) == (hashed & 0x7FFFFFFF) % topic_partitions
