"""The embedded PostgreSQL's files, whoever starts it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from include.services import postgres


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another account")
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_server_reads_its_configuration_when_root_keeps_files_to_itself(tmp_path: Path, umask: int) -> None:
    (tmp_path / "tidemark.conf").write_text("port = 1")
    before = os.umask(umask)
    try:
        postgres._write_configuration(tmp_path, 2, "nobody")
    finally:
        os.umask(before)
    file = tmp_path / "tidemark.conf"
    assert "port = 2\n" in file.read_text()
    status = file.stat()
    assert (pwd.getpwuid(status.st_uid).pw_name, status.st_mode & 0o777) == ("nobody", 0o600)
