"""A producer that a newer one with the same transactional id shuts out: nobody reads what the older one writes.

A driver can stop anywhere: between its last check of the lease and the broker's receipt of what it writes. So the
broker itself must refuse its writes. It does so by the epoch of a transactional id, which each new producer raises.
The order:

1. the producer raises the epoch of its id;
2. the lease is checked: only its holder goes on, so epochs rise in the order of fencing tokens;
3. a transaction is written; the lease is checked again; the transaction is committed, and visible to readers.

A driver that lost the lease after the check of step 3 meets a higher epoch, or is still the only one that writes.
Readers that read committed records never see the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage
from tenacity import Retrying, retry_if_exception_type, retry_if_not_result, stop_after_delay, wait_fixed

from include.crash_points import crash_point
from include.errors import AnotherWriter, MessageRefused, TidemarkError, UsageError
from include.kafka.client import CLIENT_LIMIT, consumer, enqueue, producer, unconfirmed
from include.kafka.refusals import TIMEOUT, has_no_answer, is_denied, unreachable_error
from include.kafka.topics import MAX_MESSAGE_BYTES, topic_config

Headers = Mapping[str, bytes]

Message = (
    tuple[str, bytes | None, bytes | None]
    | tuple[str, bytes | None, bytes | None, Headers]
    | tuple[str, bytes | None, bytes | None, Headers, int]
)
"""Topic, key and value, its own headers, and the topic partition if not the one of its key.

A null value deletes the key of a compacted topic, in that topic partition.
"""

MESSAGES = 50_000
"""The most messages of a transaction: more take several, each repeated as a whole."""

BYTES = 64 * 1024 * 1024
"""The most bytes of a transaction's messages, unless it is one: held in memory, and confirmed within `PATIENCE`."""

PATIENCE = 60.0
"""Seconds within which a transaction's messages must be confirmed; then the broker aborts it."""

_ATTEMPTS = 3

_LOG = logging.getLogger("tidemark.kafka")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False
"""Swallows what the client would write to standard error: the failed call reports it."""

_FENCED = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.PRODUCER_FENCED,
}

_FAILED_BEFORE = {KafkaError._STATE, KafkaError._FATAL}
"""What the client answers to each further message of a transaction that has failed, whatever the reason is."""

_NOT_IN_TIME = {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT}
"""Messages were not confirmed, although the client sent them for as long as a transaction lasts."""

_TOO_LONG = KafkaError.INVALID_TRANSACTION_TIMEOUT
"""The brokers do not let a transaction last as long as this producer asks for; a new producer asks for the same."""

_FOR_GOOD = {*_NOT_IN_TIME, _TOO_LONG}


@dataclass
class FencedProducer:
    """Writes messages of one query; not for several threads at once."""

    pipeline: str
    query: str
    check_lease: Callable[[], object]
    """Raises AnotherWriter when this driver's lease is over."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the client, by its own names."""
    _producer: Producer | None = field(default=None, init=False)
    _reader: Consumer | None = field(default=None, init=False)
    _undelivered: KafkaError | None = field(default=None, init=False)
    """The first refusal of a message of the transaction."""

    @property
    def transactional_id(self) -> str:
        """The same for every driver of the query, whatever its host."""
        return f"tidemark-{self.pipeline}-{self.query}"

    def write(self, messages: Iterable[Message], headers: Headers | None = None) -> int:
        """Write the messages, each with the headers and its own, and return how many, once they are committed.

        Unless a message names its topic partition, keys go to those that Java's producers, Spark's among them, choose.
        Raises AnotherWriter, ServiceUnreachable, or TidemarkError for what the broker refuses, UsageError where its
        settings do.
        """
        count = 0
        # Each chunk is taken before its transaction begins: computing it may take longer than one may last.
        for chunk in _chunks(messages):
            self._write_chunk(chunk, headers)
            count += len(chunk)
        return count

    def _write_chunk(self, chunk: Sequence[Message], headers: Headers | None) -> None:
        """Write one transaction; repeat it with a new producer when the broker ended the previous one's."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._transact(chunk, headers)
                return
            except BaseException as error:
                refused = self._reason(error)
                # A transaction left open would hold back every reader until the broker ends it.
                self._give_up()
                if refused is None:
                    raise
                may_pass = refused.fatal() or refused.txn_requires_abort()
                if refused.code() == KafkaError._INCONSISTENT:
                    # The client refers to the reports of the single messages.
                    refused = self._undelivered or refused
                if attempt == _ATTEMPTS or not may_pass or has_no_answer(refused) or refused.code() in _FOR_GOOD:
                    raise self._refusal(refused, chunk) from error
                # A newer driver shut it out, or the broker after a pause: only the holder of the lease may go on.
                self.check_lease()

    def _reason(self, error: BaseException) -> KafkaError | None:
        """Return what brokers or client refused; None for any other error."""
        if isinstance(error, SystemError):
            # The client reports deliveries even while it raises; Python puts this error in place of the client's own.
            error = error.__cause__ or error
        if not isinstance(error, KafkaException):
            return None
        refused: KafkaError = error.args[0]
        if self._producer is not None and refused.code() in _FAILED_BEFORE:
            # Commands tell the reason. This one changes nothing: a transaction has begun.
            try:
                self._producer.begin_transaction()
            except KafkaException as told:
                return told.args[0]
        return refused

    def _transact(self, chunk: Sequence[Message], headers: Headers | None) -> None:
        self._undelivered = None
        sender = self._producer or self._open()
        sender.begin_transaction()
        ends: dict[tuple[str, int], int] = {}

        def note(refused: KafkaError | None, delivered: KafkaMessage) -> None:
            # Called in the order of the offsets; the commit reports that a message was refused, not always why.
            self._undelivered = self._undelivered or refused
            ends[delivered.topic(), delivered.partition()] = delivered.offset()

        for message in chunk:
            topic, key, value = message[:3]
            named = {**(headers or {}), **headers_of(message)}
            place = {"partition": message[4]} if len(message) == 5 else {}
            enqueue(sender, topic, value, key, headers=named, on_delivery=note, **place)
        if waiting := sender.flush(PATIENCE):
            reason = f"it did not confirm {waiting} messages of {self.query} within {PATIENCE:.0f} s"
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, reason))
        crash_point("topic_written")
        self.check_lease()
        crash_point("topic_checked")
        sender.commit_transaction(PATIENCE)
        crash_point("topic_committed")
        self._wait_for_readers(ends)

    def _open(self) -> Producer:
        milliseconds = _milliseconds()
        opened = producer(
            **{
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": milliseconds,
                "message.timeout.ms": milliseconds,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 2 * MESSAGES,
                "logger": _LOG,
                **self.options,
            }
        )
        self._producer = opened
        opened.init_transactions(PATIENCE)
        crash_point("topic_fenced")
        self.check_lease()
        return opened

    def _wait_for_readers(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Wait until readers of committed records can see the offsets, by topic and topic partition.

        A commit is decided before its markers are in the log. Whoever learns from the ledger that a micro-batch is
        committed must find its values. The wait is bounded: another program's open transaction may hold readers back.
        A leader that moves meanwhile does not undo the commit, so it is asked again.
        """
        reader = self._reader = self._reader or consumer()

        def is_visible(at: tuple[str, int]) -> bool:
            _, stable = reader.get_watermark_offsets(TopicPartition(*at), timeout=TIMEOUT)
            return bool(stable > ends[at])

        for at in ends:
            Retrying(
                retry=retry_if_not_result(bool) | retry_if_exception_type(KafkaException),
                stop=stop_after_delay(TIMEOUT),
                wait=wait_fixed(0.005),
                retry_error_callback=lambda _: None,
            )(is_visible, at)

    def _give_up(self) -> None:
        """Abort the open transaction if the broker lets us, and drop the producer."""
        given_up, self._producer = self._producer, None
        if given_up is not None:
            # SystemError: see `_reason`.
            with suppress(KafkaException, SystemError):
                given_up.purge()
                given_up.abort_transaction(TIMEOUT)

    def _refusal(self, refused: KafkaError, chunk: Sequence[Message]) -> TidemarkError:
        topics = sorted({message[0] for message in chunk})
        if refused.code() in _NOT_IN_TIME:
            # Where no message was refused, the broker that coordinates the transaction may be away.
            is_of_step = refused.code() == KafkaError._TIMED_OUT and not self._undelivered
            return unconfirmed(refused.str(), *topics, *(["__transaction_state"] if is_of_step else []))
        if not is_denied(refused) and (unreachable := unreachable_error(refused, *topics)):
            return unreachable
        if refused.code() in _FENCED:
            return AnotherWriter(
                f"another producer with the transactional id {self.transactional_id} shuts out this driver of "
                f"{self.query}: nothing was committed",
                remedy="end the program that uses this id; then start the stream again",
                pipeline=self.pipeline,
            )
        if refused.code() == _TOO_LONG:
            milliseconds = _milliseconds()
            return UsageError(
                f"the brokers do not let transactions of {self.transactional_id} last as long as {self.query} needs, a "
                f"transaction.timeout.ms of {milliseconds}: nothing was committed",
                remedy=f"set transaction.max.timeout.ms of the brokers to {milliseconds} or more, then start the "
                "stream again",
                pipeline=self.pipeline,
            )
        if refused.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return self._too_large(refused, chunk)
        return TidemarkError(
            f"Kafka refuses what {self.query} writes in transactions of {self.transactional_id}: {refused.str()}",
            remedy="the stream's user must be allowed to write its topics, and to write and describe this "
            "transactional id",
            pipeline=self.pipeline,
        )

    def _too_large(self, refused: KafkaError, chunk: Sequence[Message]) -> MessageRefused:
        largest = max(chunk, key=_bytes_of)
        topic, taken = largest[0], None
        with suppress(TidemarkError, KafkaException):
            taken = topic_config(topic).get(MAX_MESSAGE_BYTES)
        return MessageRefused(
            f"Kafka refuses what {self.query} writes: {refused.str()}: the largest message has {_bytes_of(largest)} "
            f"bytes, the client sends at most {self.options.get('message.max.bytes', CLIENT_LIMIT)}, and the topic "
            f"{topic} takes {taken or 'an unknown number of'} bytes: nothing was committed",
            remedy=f"raise {MAX_MESSAGE_BYTES} of the topic, of an output kafka.max.request.size too; then start the "
            "stream again: a speed view's client sends what its topics take",
            pipeline=self.pipeline,
        )


def _milliseconds() -> int:
    return int(PATIENCE * 1000)


def headers_of(message: Message) -> Headers:
    """Return the message's own headers."""
    return message[3] if len(message) > 3 else {}


def _chunks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield the messages in order, at most MESSAGES and BYTES at a time."""
    chunk: list[Message] = []
    held = 0
    for message in messages:
        size = _bytes_of(message)
        if chunk and (len(chunk) == MESSAGES or held + size > BYTES):
            yield chunk
            chunk, held = [], 0
        chunk.append(message)
        held += size
    if chunk:
        yield chunk


def _bytes_of(message: Message) -> int:
    _, key, value = message[:3]
    headers = headers_of(message).items()
    return len(key or b"") + len(value or b"") + sum(len(name) + len(content) for name, content in headers)
