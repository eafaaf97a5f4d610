"""Flags that other code raised beyond what it had committed, where the code in force raised its own later."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include import kafka
from include.ledger.streams import flags as flag_ledger
from tests.conftest import Home
from tests.support import attempts as made
from tests.support.raised_flags import FLAGS, TP, raising

pytestmark = [pytest.mark.spark, pytest.mark.services]


def test_other_flag_is_of_other_code_only_when_it_was_written_before_the_run_in_force_began(
    home: Home, spark: Any
) -> None:
    with raising(home, spark) as raised:
        flag_ledger.note_run(raised.lease, raised.version, "older", {TP: 2}, {made.TOPIC: "id"})
        raised.begin(3)
        raised.commit(0, 0, 100)
        raised.produce(*raised.flags())
        (first, _), *_, (last, value) = raised.flags()
        assert value.endswith("}")
        later = int((datetime.now(UTC) + timedelta(hours=2)).timestamp() * 1000)
        producer = kafka.producer()
        # By the same limits, at offset 4.
        producer.produce(FLAGS, f'{value[:-1]},"text":"older"}}'.encode(), last.encode())
        producer.produce(FLAGS, f'{value[:-1]},"text":"invented"}}'.encode(), last.encode(), timestamp=later)
        # No other code ever read there.
        producer.produce(FLAGS, value.replace('"kafka_offset":4', '"kafka_offset":0').encode(), first.encode())
        assert producer.flush(30) == 0
        found = raised.reconcile(raised.frame())
    assert found.counts.matched == 4
    classes = sorted((each.cls.value, each.where, "older" in each.evidence) for each in found.differences)
    assert classes == [
        ("code", f"{TP} offset 4", True),
        ("unexplained", f"{TP} offset 0", False),
        ("unexplained", f"{TP} offset 4", False),
    ]
