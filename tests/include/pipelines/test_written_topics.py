"""A declaration is refused when its source reads a topic that its own stream or intervals write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaMessages, KafkaTopic, KafkaTopics, Pipeline, Rows
from include.pipelines.spec.lines import read_from_lines

NEST, ISP, AUCTION = (load_pipeline(name) for name in ("nest_cameras", "isp_hits", "auction_bids"))

SINK = KafkaMessages(messages="regional_messages", row_topics=("region-1", "region-2"), topic_suffix="-new")


def with_sink(pipeline: Pipeline, sink: KafkaMessages) -> dict[str, Any]:
    return {"views": (replace(pipeline.views[0], sinks=(sink,)), *pipeline.views[1:])}


def with_output(to: KafkaTopic) -> dict[str, Any]:
    return {"outputs": (Rows("clean", to=to),)}


READS_ITSELF = {
    "the view hourly_counts": (NEST, "nest-camera-stats", {}),
    "the report 'Cameras offline'": (NEST, "nest-camera-offline", {}),
    "flags": (AUCTION, "auction-flags", {}),
    "a sink of the view": (ISP, "region-2-new", with_sink(ISP, SINK)),
    "the output 'clean'": (NEST, "nest-clean", with_output(KafkaTopic("nest-clean"))),
}


def ways_to_read(topic: str) -> list[KafkaTopics]:
    return [
        KafkaTopics(subscribe=("events", topic)),
        KafkaTopics(assign={topic: (0,)}),
        KafkaTopics(pattern=f".*{topic[4:]}"),
        KafkaTopics(pattern=topic.replace("-", ".")),
    ]


@pytest.mark.parametrize("writer", READS_ITSELF)
@pytest.mark.parametrize("way", range(4))
def test_pipeline_is_refused_when_it_reads_a_topic_that_it_writes(writer: str, way: int) -> None:
    pipeline, topic, changed = READS_ITSELF[writer]
    with pytest.raises(UsageError) as refused:
        replace(pipeline, **changed, source=ways_to_read(topic)[way])
    text = str(refused.value)
    assert text.startswith(f"{pipeline.name}: {writer}")
    assert f"writes the topic {topic}, which the pipeline reads" in text
    assert "write a topic of another name" in text


def test_each_topic_is_checked_when_rows_name_theirs() -> None:
    to = KafkaTopic(row_topics=("nest-1", "nest-2"))
    nested = Rows("nested", to=to, rows="nested_rows", columns="topic STRING, value STRING")
    with pytest.raises(UsageError, match="the output 'nested' writes the topic nest-2, which the pipeline reads"):
        replace(NEST, outputs=(nested,), source=KafkaTopics(subscribe=("nest-2",)))


@pytest.mark.parametrize("pattern", ["nest-log", "nest-log.", "nest", "camera-stats"])
def test_pipeline_is_accepted_when_its_pattern_matches_only_a_part_of_a_written_name(pattern: str) -> None:
    source = KafkaTopics(pattern=pattern)
    assert replace(NEST, source=source).source == source


def test_topics_of_lines_are_checked_under_their_own_names() -> None:
    source = KafkaTopics(pattern="nest-.*-files")
    with pytest.raises(UsageError, match=r"nest_cameras_files: .*nest-camera-stats-files"):
        read_from_lines(replace(NEST, source=source), "files")
