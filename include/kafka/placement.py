"""Where a key's records lie, if their producer is Java's with its default partitioner: Spark's, for example."""

from __future__ import annotations

_FACTOR, _SEED, _BITS = 0x5BD1E995, 0x9747B28C, 0xFFFFFFFF


def placed_at(key: bytes, topic_partitions: int) -> int:
    """Return the number of the topic partition that the key leads to in a topic with so many.

    Source: `murmur2` in org.apache.kafka.common.utils.Utils, and BuiltInPartitioner.partitionForKey.
    """
    return (_murmur2(key) & 0x7FFFFFFF) % topic_partitions


def _murmur2(data: bytes) -> int:
    whole = len(data) - len(data) % 4
    found = _SEED ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _BITS
        found = (found * _FACTOR & _BITS) ^ ((word ^ word >> 24) * _FACTOR & _BITS)
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _BITS
    found = (found ^ found >> 13) * _FACTOR & _BITS
    return found ^ found >> 15
