"""A Kafka cluster inside this process that answers with any error it is told to: librdkafka's own mock.

Its C functions are not in the Python client, but in the library that the client loads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from importlib.metadata import files

import pytest
from confluent_kafka import Producer

from include.settings import settings

FIRST_TIMESTAMP = 1_700_000_000_000
"""Of a topic's first record; the next ones follow a second apart."""


class Request(IntEnum):
    """Kafka's requests, by their number in the protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    ADD_PARTITIONS_TO_TXN = 24


class MockCluster:
    """Three brokers on loopback."""

    def __init__(self) -> None:
        self._library = _library()
        why = ctypes.create_string_buffer(512)
        self._client = self._library.rd_kafka_new(0, self._library.rd_kafka_conf_new(), why, len(why))
        assert self._client, why.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 3)
        self.address = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create_topic(self, topic: str, topic_partitions: int = 1, records: int = 0) -> None:
        """Create a topic with so many records in each topic partition."""
        assert not self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), topic_partitions, 3)
        producer = Producer({"bootstrap.servers": self.address, "log_level": 0})
        for partition in range(topic_partitions):
            for number in range(records):
                timestamp = FIRST_TIMESTAMP + 1000 * number
                producer.produce(topic, f"value {number}", f"key {number}", partition=partition, timestamp=timestamp)
        assert producer.flush(30) == 0

    def fail(self, request: Request, *errors: int) -> None:
        """Answer the next requests of a kind with these errors, 0 for none, instead of what was set before."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, request)
        codes = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(errors), codes)

    def lose_leader(self, topic: str, partition: int) -> None:
        """Let no broker lead a topic partition any more."""
        assert not self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, -1)

    def close(self) -> None:
        """End the brokers."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


@contextmanager
def mock_cluster() -> Iterator[MockCluster]:
    """Yield a new cluster that this process's settings name."""
    cluster = MockCluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEMARK_KAFKA_BOOTSTRAP", cluster.address)
        settings.cache_clear()
        yield cluster
    settings.cache_clear()
    cluster.close()


@cache
def _library() -> ctypes.CDLL:
    [path] = [each for each in files("confluent-kafka") or () if each.name.startswith("librdkafka-")]
    library = ctypes.CDLL(str(path.locate()))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        ("rd_kafka_mock_partition_set_leader", number, [pointer, text, ctypes.c_int32, ctypes.c_int32]),
        ("rd_kafka_mock_clear_request_errors", None, [pointer, ctypes.c_int16]),
        ("rd_kafka_mock_push_request_errors_array", None, [pointer, ctypes.c_int16, ctypes.c_size_t, pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
