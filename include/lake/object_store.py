"""A lake in an S3-compatible object store (`s3a://bucket/…`), for Spark and for Python.

Credentials, endpoint and region are the environment variables of AWS clients: `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_ENDPOINT_URL`, `AWS_REGION`. Spark and Python read them from there;
they are never written to a file or a command line.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from pyarrow import fs

from include.errors import ServiceUnreachable, one_line

_SCHEME = "s3a://"

_STATUS = r"(?:30\d|40[0138]|429|5\d\d)"
"""What a store answers that refuses, limits or does not manage requests; others (404, 412, 416) are about one file."""

_REFUSED = re.compile(
    # pyarrow; the status stands for the code where an answer has no body, as those to HEAD, each file's first request
    rf"AWS Error [A-Z_]+(?: \(HTTP status {_STATUS}\))? during"
    rf"|Unable to execute HTTP request|\(Service: S3, Status Code: {_STATUS}\b"  # the SDK under Spark
    r"|Got the following \d+ errors when deleting objects in S3"  # pyarrow, where the answer is about each object
    r"|NoAuthWithAWSException|UnknownStoreException|NoSuchBucket"
)

TRIES = 10
"""Of each request of Python's, with pauses that double: 25 seconds in which a store may start again."""

REMEDY = "check the bucket, AWS_ENDPOINT_URL, AWS_REGION and the credentials, then start again"

_SDK = "software.amazon.awssdk"

_CLOUD = "org.apache.spark.internal.io.cloud"


def is_bucket_uri(location: str) -> bool:
    """Return whether a URI names something in a bucket (`s3a://…`)."""
    return location.startswith(_SCHEME)


def filesystem(location: str) -> tuple[fs.FileSystem, str]:
    """Return the object store of a URI and the path in it, which begins with the bucket."""
    path = location.removeprefix(_SCHEME)
    return _store(path.split("/", 1)[0]), path


class Patience(fs.AwsDefaultS3RetryStrategy):  # type: ignore[misc]
    """How often Arrow's client asks a store again; PyIceberg makes one by this name, without arguments."""

    def __init__(self) -> None:
        super().__init__(max_attempts=TRIES)


@cache
def _store(bucket: str) -> fs.FileSystem:
    # AWS itself tells the bucket's region.
    place = client_address() or {"region": fs.resolve_s3_region(bucket)}
    return fs.S3FileSystem(retry_strategy=Patience(), **place)


def put(store: fs.FileSystem, path: str, content: bytes) -> None:
    """Write an object, which replaces an existing one when it is complete, whatever signal comes meanwhile."""

    def write() -> None:
        with store.open_output_stream(path) as file:
            file.write(content)

    # Signals are raised in the main thread. There, one that comes as the stream is opened would leave it behind, and
    # Arrow then completes the object without its content.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()


def client_address() -> dict[str, str]:
    """Return the options of Arrow's client for a self-hosted store; none for AWS."""
    return {"endpoint_override": endpoint(), "region": region()} if endpoint() else {}


def spark_properties() -> dict[str, str]:
    """Return Spark's properties for a lake in a bucket: endpoint, and commits that complete multipart uploads.

    An object store cannot rename a folder in one step, so nothing is staged under another name: the uploads of a
    task attempt become files only when the job commits.
    """
    properties = {
        # The default type reads through Netty, and PySpark ships another version of it than the SDK was built with.
        "spark.hadoop.fs.s3a.input.stream.type": "classic",
        # Blocks are buffered in the driver's own folder, which is removed with it (include/spark/driver_folders.py).
        "spark.hadoop.fs.s3a.buffer.dir": "${java.io.tmpdir}/s3a",
        # Hadoop's own list has neither profiles nor the role of a service account, which Python's clients find.
        "spark.hadoop.fs.s3a.aws.credentials.provider": f"{_SDK}.auth.credentials.DefaultCredentialsProvider",
        "spark.hadoop.fs.s3a.committer.name": "magic",
        "spark.sql.sources.commitProtocolClass": f"{_CLOUD}.PathOutputCommitProtocol",
        "spark.sql.parquet.output.committer.class": f"{_CLOUD}.BindingParquetOutputCommitter",
    }
    if address := endpoint():
        # A self-hosted store has no host name per bucket.
        properties["spark.hadoop.fs.s3a.endpoint"] = address
        properties["spark.hadoop.fs.s3a.path.style.access"] = "true"
    if name := region():
        properties["spark.hadoop.fs.s3a.endpoint.region"] = name
    return properties


def endpoint() -> str:
    """Return the address of a self-hosted store; empty for AWS."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def region() -> str:
    """Return the region that is set; empty for none. A self-hosted store accepts any."""
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    return named or ("us-east-1" if endpoint() else "")


def checkpoint_properties() -> dict[str, str]:
    """Return Spark's properties for checkpoints in a bucket: each file is one upload, visible whole or not at all."""
    return {"spark.sql.streaming.checkpointFileManagerClass": f"{_CLOUD}.AbortableStreamBasedCheckpointFileManager"}


def unreachable_error(lake: str, text: str) -> ServiceUnreachable | None:
    """Return the error for a store that refuses or does not answer, recognised by Spark's or pyarrow's message.

    None for a lake outside of a bucket, and for any other message.
    """
    if not is_bucket_uri(lake) or not (refusal := _REFUSED.search(text)):
        return None
    line = next(each for each in text[: refusal.end() + 400].splitlines() if refusal[0].splitlines()[0] in each)
    return ServiceUnreachable(
        f"the lake {lake}: {one_line(line)}",
        remedy=REMEDY,
    )
