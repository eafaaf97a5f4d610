"""Jars: fetched by several at once, or from a network that fails, and compiled for other accounts."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fasteners
import pytest
import tenacity

from include.doctor import machine
from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.settings import REPOSITORY
from include.spark import class_archive, compiled_jars, jars
from include.spark.class_training import ensure_class_archive
from include.waiting import wait_for

FETCH = """
import sys
from pathlib import Path
from include.spark import jars
jars.folder = lambda: Path(sys.argv[1])
print(jars.registry_application(print))
"""


def write_java(folder: Path, failures: int) -> Path:
    """A launcher of Java that fails to reach anything `times` times, then runs the real one."""
    launcher, count = folder / "java", folder / "starts"
    launcher.write_text(
        f"""#!/bin/sh
echo start >> {count}
if [ $(wc -l < {count}) -le {failures} ]; then
  echo ':::: ERRORS'; echo 'SERVER ERROR: Bad Gateway url=https://mirror/x.tar.gz'; exit 1
fi
exec {jars.java()} "$@"
"""
    )
    launcher.chmod(0o700)
    return count


@pytest.mark.parametrize(("failures", "starts", "fails"), [(2, 3, False), (9, 4, True)])
def test_fetching_is_retried_and_names_the_reason_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, starts: int, fails: bool
) -> None:
    (tmp_path / "ivy-cache").symlink_to(REPOSITORY / ".tidemark" / "jars" / "ivy-cache")
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "fetched")
    (tmp_path / "bin").mkdir()
    count = write_java(tmp_path / "bin", failures)
    monkeypatch.setattr(jars, "java", lambda: str(tmp_path / "bin" / "java"))
    monkeypatch.setattr(tenacity, "wait_exponential", lambda **_: tenacity.wait_none())
    if fails:
        with pytest.raises(ServiceUnreachable, match="in 4 tries: SERVER ERROR: Bad Gateway"):
            jars.ensure_jars(print, ["spark"])
    else:
        jars.ensure_jars(print, ["spark"])
        assert jars.classpath("spark")
    assert len(count.read_text().splitlines()) == starts


def test_java_goes_by_the_proxies_when_the_environment_names_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "fetched")
    monkeypatch.setattr(jars, "java", lambda: "java")
    ran: list[Sequence[str]] = []
    failed = subprocess.CompletedProcess((), 1, "", "")
    monkeypatch.setattr(jars, "_run_patiently", lambda command: ran.append(command) or failed)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TIDEMARK_JVM_OPTIONS", "-Djavax.net.ssl.trustStore=/of/the/proxy")
    for proxies in (
        {},
        {"https_proxy": "http://proxy.example.net:3128/", "http_proxy": "proxy", "no_proxy": "10.0.0.7, .example.net"},
    ):
        for name, value in proxies.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ServiceUnreachable):
            jars.ensure_jars(print, ["spark"])
    without, options = ([part for part in command if part.startswith("-Dhttp")] for command in ran)
    assert without == []
    assert options == [
        "-Dhttp.proxyHost=proxy",
        "-Dhttp.proxyPort=80",
        "-Dhttps.proxyHost=proxy.example.net",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|127.*|[::1]|10.0.0.7|*.10.0.0.7|example.net|*.example.net",
    ]
    assert ran[1].index(options[-1]) < ran[1].index("-Djavax.net.ssl.trustStore=/of/the/proxy") < ran[1].index("-jar")


def test_jars_are_fetched_when_they_are_named_and_nothing_has_used_them_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ivy-cache").symlink_to(REPOSITORY / ".tidemark" / "jars" / "ivy-cache")
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "fetched")
    # Of a fetch that was interrupted.
    (tmp_path / "fetched.partial" / "spark").mkdir(parents=True)
    # Of an account that keeps files to itself, which others' commands read all the same.
    before = os.umask(0o077)
    try:
        assert jars.main(["delta"]) == 0
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert {each.name for each in jars.folder().iterdir()} == {"delta"}
    fetched = [jars.folder(), jars.folder() / "delta", *jars.classpath("delta")]
    assert [each.stat().st_mode & 0o004 for each in fetched] == [0o004] * len(fetched)
    assert jars.main(["deltas"]) == UsageError.exit_code


def damage_a_jar(cache: Path) -> None:
    (jar,) = cache.rglob("delta-storage-4.4.0.jar")
    content = jar.read_bytes()
    # Not the one that it links to.
    jar.unlink()
    jar.write_bytes(content + b" ")


def add_a_dependency(cache: Path) -> None:
    described = cache / "org.apache.kafka" / "kafka_2.13" / "ivy-4.3.1.xml"
    added = '<dependency org="org.postgresql" name="postgresql" rev="42.7.14" conf="runtime->master(*)"/>'
    described.write_text(described.read_text().replace("</dependencies>", f"{added}</dependencies>"))


@pytest.mark.parametrize(
    ("conf", "change", "named"),
    [
        ("delta", damage_a_jar, "1 jars differ from their checksums or are missing: delta/delta-storage-4.4.0.jar"),
        (
            "broker",
            add_a_dependency,
            "1 jars without a checksum came with those of broker: broker/postgresql-42.7.14.jar",
        ),
    ],
)
def test_what_was_downloaded_is_refused_and_forgotten_when_it_is_not_what_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conf: jars.Conf, change: Callable[[Path], None], named: str
) -> None:
    cache = tmp_path / "ivy-cache"
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "fetched")

    def link_what_is_large(source: str, target: str) -> None:
        if Path(target).exists():
            return
        if source.endswith((".jar", ".gz")):
            Path(target).symlink_to(source)
        else:
            shutil.copy2(source, target)

    def download() -> None:
        kept = REPOSITORY / ".tidemark" / "jars" / "ivy-cache"
        shutil.copytree(kept, cache, copy_function=link_what_is_large, dirs_exist_ok=True)

    download()
    change(cache)
    with pytest.raises(TidemarkError, match=named):
        jars.ensure_jars(print, [conf])
    assert not (tmp_path / "fetched").exists()
    # Ivy would serve it again from there, however often one starts.
    # What else is there stays, for who has no network, unless anything may have added the jar.
    assert len(list(cache.iterdir())) > 20 if "differ" in named else [*cache.iterdir()] == [cache / "fetch.lock"]
    download()
    jars.ensure_jars(print, [conf])
    assert jars.damaged([conf]) == jars.unpinned([conf]) == []


def test_jar_without_a_checksum_is_left_out_named_and_removed_when_it_lies_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ivy-cache").symlink_to(REPOSITORY / ".tidemark" / "jars" / "ivy-cache")
    pinned = [path.name for path in jars.classpath("delta")]
    for conf in jars.SET_UP:
        shutil.copytree(jars.folder() / conf, tmp_path / "fetched" / conf, copy_function=os.symlink)
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "fetched")
    (tmp_path / "fetched" / "delta" / "more.jar").touch()
    assert [path.name for path in jars.classpath("delta")] == pinned
    (found, _) = machine._jars()
    assert not found.ok
    assert found.what.endswith(" jars as pinned, and 1 that are not pinned: delta/more.jar")
    jars.ensure_jars(print)
    assert jars.unpinned() == []
    assert next(machine._jars()).ok


def test_registry_is_fetched_once_when_two_start_it_for_the_first_time_at_once(tmp_path: Path) -> None:
    (tmp_path / "ivy-cache").symlink_to(REPOSITORY / ".tidemark" / "jars" / "ivy-cache")
    target = tmp_path / jars.folder().name
    command = [sys.executable, "-c", FETCH, str(target)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [each.communicate(timeout=600) for each in both]
    assert [each.returncode for each in both] == [0, 0], told
    assert sorted(out.count("fetching, once") for out, _ in told) == [0, 1]
    assert {out.splitlines()[-1] for out, _ in told} == {str(target / "registry" / "application")}
    assert not list(tmp_path.rglob("*.partial"))
    assert len(list((target / "registry" / "application").glob("*-runner.jar"))) == 1


def test_compiled_jars_are_readable_by_all_when_their_account_keeps_files_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_jars, "FOLDER", tmp_path / "classes")
    monkeypatch.setattr(compiled_jars, "compile_java", lambda source, jar, beside: jar.write_bytes(source.read_bytes()))
    assert len(compiled_jars.lacking()) == 3
    compiled_jars.compile_all()
    # As an earlier version left one, or a person, who may have more rights than that.
    kept, shared, _ = sorted(compiled_jars.FOLDER.iterdir())
    kept.chmod(0o600)
    shared.chmod(0o664)
    assert compiled_jars.lacking() == [kept.name]
    compiled_jars.compile_all()
    assert [each.stat().st_mode & 0o777 for each in (kept, shared)] == [0o644, 0o664]
    assert compiled_jars.lacking() == []
    shared.unlink()
    before = os.umask(0o077)
    try:
        assert compiled_jars.main() == 0
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    made = [compiled_jars.FOLDER, *compiled_jars.FOLDER.iterdir()]
    assert [each.stat().st_mode & 0o777 for each in made] == [0o755, 0o644, 0o644, 0o644]
    assert compiled_jars.lacking() == []


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EROFS])
def test_owner_is_asked_for_when_a_compiled_jar_is_missing_and_its_user_cannot_write_to_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reason: int
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(compiled_jars, "FOLDER", tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    assert compiled_jars.main() == UsageError.exit_code
    told = capsys.readouterr().err
    assert f"{tmp_path}/KafkaDeserializers-" in told
    assert told.endswith("— the owner of this checkout must start ./tidemark doctor --repair\n")


def refuse_locks(monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    """Let nobody fetch jars, as where this user may not write to the checkout."""

    def refuse(path: Path) -> None:
        raise OSError(reason, os.strerror(reason), os.fsencode(path))

    monkeypatch.setattr(fasteners, "InterProcessLock", refuse)


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EROFS])
def test_jars_are_found_and_their_owner_is_asked_for_what_is_missing_when_a_user_cannot_write_to_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    (packed,) = (name for name in jars.checksums() if name.startswith("registry/"))
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "fetched")
    content = {name: name.encode() for name in (packed, "spark/a.jar", "s3/b.jar")}
    monkeypatch.setattr(
        jars, "checksums", lambda: {name: hashlib.sha256(each).hexdigest() for name, each in content.items()}
    )
    for name, each in content.items():
        (tmp_path / "fetched" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fetched" / name).write_bytes(each)
    (tmp_path / "fetched" / packed).with_name("application").mkdir()
    refuse_locks(monkeypatch, reason)
    jars.ensure_jars(print)
    jars.ensure_fetched("s3", print)
    assert jars.registry_application(print).is_dir()
    shutil.rmtree(tmp_path / "fetched")
    for fetch, command in (
        (jars.ensure_jars, "doctor --repair"),
        (jars.registry_application, "up registry"),
        (partial(jars.ensure_fetched, "yarn"), "up yarn"),
        (partial(jars.ensure_fetched, "s3"), 'sql "SELECT 1" with this TIDEMARK_LAKE'),
    ):
        with pytest.raises(UsageError, match=r"and this user cannot write to this checkout: ") as refused:
            fetch(print)
        assert refused.value.remedy == f"the owner of this checkout must start ./tidemark {command}"


def test_rest_is_repaired_when_the_checkout_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "fetched")
    monkeypatch.setattr(machine, "close_secrets", lambda tell: tell("closed"))
    refuse_locks(monkeypatch, errno.EACCES)
    told: list[str] = []
    machine.repair_machine(told.append)
    refused, closed = told
    assert refused.startswith("not repaired: not all jars in ")
    assert "the owner of this checkout must start ./tidemark doctor --repair" in refused
    assert closed == "closed"


JAVA = """#!/bin/sh
echo "$TIDEMARK_HOME" >> "$(dirname "$0")/homes"
echo 'java.lang.UnsatisfiedLinkError: libsnappyjava.so: failed to map segment' >&2
exit 1
"""


def test_reason_is_told_when_spark_s_classes_cannot_be_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "java" / "bin" / "java"
    for each in (program, tmp_path / "java" / "lib" / "modules"):
        each.parent.mkdir(parents=True)
        each.write_text(JAVA)
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr(class_archive, "folder", lambda: tmp_path / "classes")
    told: list[str] = []
    assert not ensure_class_archive(told.append)
    assert told[-1].endswith("without them: java.lang.UnsatisfiedLinkError: libsnappyjava.so: failed to map segment")
    # Where nothing may be run from the system's folder for temporary files, Spark's libraries can be loaded there.
    homes = (program.parent / "homes").read_text().split()
    assert {Path(each).parent for each in homes} == {tmp_path / "classes"}
    assert not list((tmp_path / "classes").iterdir())


TRAIN = """
import sys
from pathlib import Path
from include.spark import class_archive, class_training
class_archive.find = lambda: None
class_archive.folder = lambda: Path(sys.argv[1])
sys.exit(class_training.main([]))
"""


def test_nothing_is_left_in_the_checkout_when_the_set_up_ends_the_preparation_of_spark_s_classes(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN, tmp_path], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    ) as training:
        assert wait_for(lambda: [*tmp_path.glob("training-*/*")], seconds=60, every=0.05)
        training.terminate()
    assert training.returncode == 143
    assert not list(tmp_path.iterdir())


def test_owner_is_asked_for_when_spark_s_classes_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(class_archive, "find", lambda: None)
    monkeypatch.setattr(class_archive, "folder", lambda: tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    # A file system that takes no changes does not even look whether there is such a file.
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UsageError, match="Spark's classes are not prepared, and this user cannot write"):
        ensure_class_archive(print)
