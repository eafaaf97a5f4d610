"""A lake in an S3-compatible store (`s3a://bucket/…`): the same objects for Spark and for everything outside it.

Credentials, endpoint and region have the names that AWS clients know: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_SESSION_TOKEN`, `AWS_ENDPOINT_URL`, `AWS_REGION`. They stay in the environment, from which both sides read them:
no file and no command line holds them.
"""

from __future__ import annotations

import os
import re
from functools import cache

from pyarrow import fs

from include.errors import ServiceUnreachable, one_line

_SCHEME = "s3a://"

_REFUSED = re.compile(
    r"AWS Error [A-Z_]+ during"  # pyarrow
    r"|Unable to execute HTTP request|\(Service: S3, Status Code: (?:30\d|403|5\d\d)"  # the SDK under Spark
    r"|NoAuthWithAWSException|UnknownStoreException|NoSuchBucket"
)

_CLOUD = "org.apache.spark.internal.io.cloud"


def holds(location: str) -> bool:
    """Whether a URI is of an object store."""
    return location.startswith(_SCHEME)


def filesystem(location: str) -> tuple[fs.FileSystem, str]:
    """The store of a URI and the path in it, which begins with the bucket."""
    path = location.removeprefix(_SCHEME)
    return _store(path.split("/", 1)[0]), path


@cache
def _store(bucket: str) -> fs.FileSystem:
    # By a URI: this way the endpoint of the environment counts, and a bucket's region is found where none is set.
    return fs.FileSystem.from_uri(f"s3://{bucket}")[0]


def spark_properties() -> dict[str, str]:
    """What a session needs: where the store is, and writes that are committed by completing their uploads.

    A folder of a store cannot be renamed in one step, so nothing is staged under another name: an attempt's
    uploads become files when its job commits, and never before.
    """
    properties = {
        # The newer kind reads through Netty, of which PySpark ships another version than the SDK was built with.
        "spark.hadoop.fs.s3a.input.stream.type": "classic",
        # Blocks wait for their upload in the folder that goes with the process (include/spark/driver_folders.py).
        "spark.hadoop.fs.s3a.buffer.dir": "${java.io.tmpdir}/s3a",
        "spark.hadoop.fs.s3a.committer.name": "magic",
        "spark.sql.sources.commitProtocolClass": f"{_CLOUD}.PathOutputCommitProtocol",
        "spark.sql.parquet.output.committer.class": f"{_CLOUD}.BindingParquetOutputCommitter",
    }
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        # Buckets of a server of one's own have no host names of their own, and its region is a word.
        properties["spark.hadoop.fs.s3a.endpoint"] = endpoint
        properties["spark.hadoop.fs.s3a.path.style.access"] = "true"
        region = region or "us-east-1"
    if region:
        properties["spark.hadoop.fs.s3a.endpoint.region"] = region
    return properties


def checkpoint_properties() -> dict[str, str]:
    """For sessions whose checkpoints lie in the store: each file of them is one upload, seen whole or not at all."""
    return {"spark.sql.streaming.checkpointFileManagerClass": f"{_CLOUD}.AbortableStreamBasedCheckpointFileManager"}


def unreachable(lake: str, text: str) -> ServiceUnreachable | None:
    """The error of a store that refuses or does not answer, by what either side said of it; None for anything else."""
    if not holds(lake) or not (found := _REFUSED.search(text)):
        return None
    line = next(each for each in text[: found.end() + 400].splitlines() if found[0].splitlines()[0] in each)
    return ServiceUnreachable(
        f"the lake {lake}: {one_line(line)}",
        remedy="see to the bucket, AWS_ENDPOINT_URL, AWS_REGION and the credentials, then start again",
    )
