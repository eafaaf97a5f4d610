"""Move objects within a store. The store copies those that are too large for one request part by part.

No byte of them passes through this machine. Arrow's client has no such copy.
"""

from __future__ import annotations

from typing import Any

from pyarrow import fs

from include.errors import ServiceUnreachable, one_line
from include.lake import object_store

COPIED_AT_ONCE = 5 * 1024**3
"""Bytes of the largest object that S3 copies in one request."""

PART_BYTES = 256 * 1024**2
"""Bytes of a part, at least the 5 MiB that S3 asks for. Larger where there would be more than 10,000 parts."""


def move(store: fs.FileSystem, source: str, target: str) -> None:
    """Move one object within a store. The target is there whole or not at all, the source until the target is there.

    Raise ServiceUnreachable when the store refuses to copy or does not answer.
    """
    if store.get_file_info(source).size <= COPIED_AT_ONCE:
        store.move(source, target)
        return
    copy_in_parts(source, target)
    store.delete_file(source)


def copy_in_parts(source: str, target: str) -> None:
    """Have the store copy an object part by part; a failed upload is aborted there and leaves nothing visible."""
    from boto3.exceptions import Boto3Error
    from boto3.s3.transfer import TransferConfig
    from botocore.exceptions import BotoCoreError, ClientError

    (bucket, key), (to_bucket, to_key) = (path.split("/", 1) for path in (source, target))
    parts = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
    try:
        _client().copy({"Bucket": bucket, "Key": key}, to_bucket, to_key, Config=parts)
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise ServiceUnreachable(
            f"the store did not copy s3a://{source} to s3a://{target}: {one_line(str(error))}",
            remedy=object_store.REMEDY,
        ) from error


def _client() -> Any:
    import boto3
    from botocore.config import Config

    # As Spark and Arrow address it: a self-hosted store has no host name per bucket.
    style = {"addressing_style": "path"} if object_store.endpoint() else {}
    # A session of its own: the default one keeps the credentials that it found first.
    return boto3.Session().client("s3", region_name=object_store.region() or None, config=Config(s3=style))
