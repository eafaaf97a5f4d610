"""What the demo says where it cannot go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.airflow.demo_run import tell_failures
from include.ledger.streams import launches
from include.pipelines import load_pipeline
from tests.conftest import Home
from tests.support import s3_server


@pytest.mark.services
def test_each_driver_that_failed_is_told_once_with_its_last_line_when_airflow_starts_others(
    postgres: Home, tmp_path: Path
) -> None:
    pipeline, said, told = load_pipeline("nest_cameras"), list[str](), {"of-an-earlier-demo"}
    for name, code in (("of-an-earlier-demo", 6), ("refused", 6), ("stopped", 0), ("runs", None)):
        log = tmp_path / f"{name}.log"
        log.write_text(f"a line before\n{name}: check the bucket\n")
        launches.note_intent(name, "nest_cameras", "here", str(log))
        if code is not None:
            launches.note_end(name, code)
    for _ in range(2):
        tell_failures(pipeline, told, said.append)
    assert said == ["  the stream's driver ended with exit code 6: refused: check the bucket"]


@pytest.mark.slow
@pytest.mark.services
def test_demo_starts_nothing_and_says_so_when_the_bucket_is_missing_or_refuses(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with s3_server.serving(tmp_path_factory.mktemp("s3")) as server:
        home = s3_server.BucketHome(tmp_path_factory.mktemp("home"), server)
        missing = home.run("demo", expect=6, TIDEMARK_LAKE="s3a://no-such-bucket/tidemark")
        refused = home.run("demo", expect=6, AWS_SECRET_ACCESS_KEY="wrong-canary")
    assert missing.stderr == (
        "tidemark: the lake s3a://no-such-bucket/tidemark: the bucket does not exist — "
        "create it, or correct TIDEMARK_LAKE\n"
    )
    assert f"the lake s3a://{s3_server.BUCKET}/tidemark: " in refused.stderr
    assert "the credentials, then start again" in refused.stderr
    assert "wrong-canary" not in refused.stderr
    assert not (home.path / "services").exists()
