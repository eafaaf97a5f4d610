"""Deleting a folder in which tasks of a failed job still make and remove files."""

from __future__ import annotations

import errno

from pyarrow import fs
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed


def _is_changing(error: BaseException) -> bool:
    return isinstance(error, FileNotFoundError) or getattr(error, "errno", None) == errno.ENOTEMPTY


# Spark cancels the tasks of a job that failed, and does not wait for their end.
@retry(retry=retry_if_exception(_is_changing), stop=stop_after_delay(10), wait=wait_fixed(0.1), reraise=True)
def delete_folder(system: fs.FileSystem, path: str) -> None:
    """Delete a folder with its content. Raise OSError when it still changes after ten seconds."""
    if system.get_file_info(path).type == fs.FileType.Directory:
        try:
            system.delete_dir(path)
        except FileNotFoundError:
            # A store lists a folder that holds nothing but abandoned uploads, and then finds no object there.
            if isinstance(system, fs.LocalFileSystem):
                raise
