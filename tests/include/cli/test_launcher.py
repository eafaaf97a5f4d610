"""The launcher's look at the set-up, in a checkout with stand-ins for Python, Java and uv."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from include.setting_values import NOT_IN_FOLDERS
from tests.conftest import REPOSITORY

INPUTS = ("uv.lock", "include/spark/ivy.xml", "include/spark/jars.sha256", "include/spark/LinkingLogStore.java")


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is set up: its Python prints what it runs, its uv fails, and hashing is noted in a file."""
    shutil.copy(REPOSITORY / "tidemark", tmp_path / "tidemark")
    for name in INPUTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"content of {name}")
    program(tmp_path / ".venv/bin/python", 'echo "runs $*"')
    program(tmp_path / ".tidemark/tools/bin/uv", "exit 1")
    program(tmp_path / "java/bin/java", "echo 'openjdk version \"17.0.1\"' >&2")
    program(tmp_path / "bin/sha256sum", f'echo hashed >> "{tmp_path}/hashed"; exec {shutil.which("sha256sum")} "$@"')
    together = b"".join((tmp_path / name).read_bytes() for name in INPUTS)
    (tmp_path / ".tidemark/setup.stamp").write_text(hashlib.sha256(together).hexdigest()[:32])
    return tmp_path


def start(
    checkout: Path,
    *before: str,
    cwd: Path | None = None,
    program: str = "",
    arguments: Sequence[str] = ("status",),
    **extra: str,
) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "JAVA_HOME": str(checkout / "java"),
        "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}",
        **extra,
    }
    command = [*before, program or str(checkout / "tidemark"), *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd
    )


def run(checkout: Path, *before: str, **options: Any) -> subprocess.CompletedProcess[str]:
    started = start(checkout, *before, **options)
    output, errors = started.communicate(timeout=120)
    return subprocess.CompletedProcess(started.args, started.returncode, output, errors)


def hashings(checkout: Path) -> int:
    noted = checkout / "hashed"
    return len(noted.read_text().splitlines()) if noted.exists() else 0


def test_files_of_the_set_up_are_hashed_once_when_nothing_changes(checkout: Path) -> None:
    assert [run(checkout).stdout for _ in range(3)] == ["runs -P -m include.cli status\n"] * 3
    assert hashings(checkout) == 1


def test_files_of_the_set_up_are_hashed_again_when_one_is_touched(checkout: Path) -> None:
    run(checkout)
    (checkout / "uv.lock").touch()
    assert run(checkout).stdout == run(checkout).stdout == "runs -P -m include.cli status\n"
    assert hashings(checkout) == 2


def without_programs(checkout: Path) -> str:
    """Return a PATH of the stand-ins and of what the launcher itself runs."""
    for name in (
        "bash",
        "cat",
        "dirname",
        "env",
        "flock",
        "head",
        "mkdir",
        "mv",
        "readlink",
        "rm",
        "sed",
        "stat",
        "tail",
    ):
        (checkout / "bin" / name).symlink_to(str(shutil.which(name)))
    program(checkout / "bin/id", "echo 0")
    return str(checkout / "bin")


@pytest.mark.parametrize(
    ("arguments", "is_tried"),
    [
        (["test"], True),
        (["--debug", "test", "-x"], True),
        (["test", "--help"], False),
        (["--debug", "test", "--help"], False),
        (["--debug"], False),
        ([], False),
        (["status", "test"], False),
    ],
)
def test_tools_of_the_tests_are_installed_only_when_tests_are_to_run(
    checkout: Path, arguments: list[str], is_tried: bool
) -> None:
    done = run(checkout, arguments=arguments, PATH=without_programs(checkout))
    assert done.stdout.split() == ["runs", "-P", "-m", "include.cli", *arguments]
    assert ("their tests skip: chromium" in done.stderr) == is_tried


@pytest.mark.parametrize(("apt", "code"), [("", 64), ("echo 'Temporary failure resolving'; exit 100", 6)])
def test_exit_code_tells_what_cannot_be_installed_from_what_does_not_answer(
    checkout: Path, apt: str, code: int
) -> None:
    path = without_programs(checkout)
    (checkout / "uv.lock").write_text("another")
    (checkout / ".tidemark/tools/bin/uv").unlink()
    # Without pip and venv.
    program(checkout / "bin/python3.13", '[ "$1" = -c ]')
    if apt:
        program(checkout / "bin/apt-get", apt)
    failed = run(checkout, PATH=path)
    assert (failed.returncode, failed.stdout) == (code, "")
    assert "install python3-venv or uv" in failed.stderr
    assert ("Temporary failure" in failed.stderr) == bool(apt)


@pytest.mark.parametrize("there", ["venv", "pip", "apt-get"])
def test_uv_is_that_of_the_image_when_the_launcher_installs_it(checkout: Path, there: str) -> None:
    path = without_programs(checkout)
    (checkout / "uv.lock").write_text("another")
    (checkout / ".tidemark/tools/bin/uv").unlink()
    program(
        checkout / "bin/python3.13",
        f"""case "$*" in
-c*) ;;
"-m venv "*) [ -e "{checkout}/venv" ] && mkdir -p "$3/bin" && {shutil.which("ln")} -sf "$0" "$3/bin/python" ;;
"-m pip --version") [ -e "{checkout}/pip" ] ;;
*) echo "$*" >> "{checkout}/asked" ;;
esac""",
    )
    program(checkout / "bin/apt-get", f': > "{checkout}/venv"')
    (checkout / there).touch()
    assert run(checkout, PATH=path).returncode == 6
    (asked,) = (checkout / "asked").read_text().splitlines()
    image = (REPOSITORY / "include" / "deploy" / "Dockerfile").read_text()
    assert asked.startswith("-m pip install -q ")
    assert re.findall(r"\buv==\S+", asked) == re.findall(r"pip install .*\b(uv==\S+)", image) != []


def test_proxies_are_kept_when_packages_are_installed_by_sudo(checkout: Path) -> None:
    path = without_programs(checkout)
    program(checkout / "bin/id", "echo 1000")
    program(checkout / "bin/apt-get", "exit 1")
    program(checkout / "bin/sudo", f'[ "$2" = true ] || echo "$*" >> "{checkout}/asked"')
    run(checkout, arguments=["test"], PATH=path)
    asked = (checkout / "asked").read_text().splitlines()
    assert [line.split()[1] for line in asked] == ["--preserve-env=http_proxy,https_proxy,no_proxy"] * 3


@pytest.mark.parametrize("name", INPUTS)
def test_set_up_begins_again_when_a_file_of_the_same_size_and_time_replaces_another(checkout: Path, name: str) -> None:
    run(checkout)
    path = checkout / name
    before = path.stat()
    path.write_text(path.read_text().upper())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    failed = run(checkout)
    assert (failed.returncode, failed.stdout) == (6, "")
    assert "could not be installed" in failed.stderr


def test_set_up_begins_again_when_its_stamp_is_gone(checkout: Path) -> None:
    run(checkout)
    (checkout / ".tidemark/setup.stamp").unlink()
    assert run(checkout).returncode == 6


@pytest.mark.parametrize(
    ("line", "chosen"), [("version_info = 3.12.7", "3.12"), ("version = 3.12.7", "3.12"), ("", "3.13")]
)
def test_environment_keeps_its_version_of_python_when_it_is_installed_again(
    checkout: Path, line: str, chosen: str
) -> None:
    for version in ("3.13", "3.12", "3.11"):
        program(checkout / f"bin/python{version}", "exit 0")
    program(checkout / ".tidemark/tools/bin/uv", f'echo "$*" > "{checkout}/asked"; exit 1')
    (checkout / ".venv/pyvenv.cfg").write_text(f"home = /usr/bin\n{line}\n")
    (checkout / "uv.lock").write_text("another")
    assert run(checkout).returncode == 6
    assert f"--python {checkout}/bin/python{chosen} " in (checkout / "asked").read_text()


def test_another_python_is_taken_when_that_of_the_environment_is_gone(checkout: Path) -> None:
    program(checkout / "bin/python3.13", "exit 0")
    program(checkout / ".tidemark/tools/bin/uv", f'echo "$*" > "{checkout}/asked"; exit 1')
    (checkout / ".venv/pyvenv.cfg").write_text("version_info = 3.9.1\n")
    (checkout / "uv.lock").write_text("another")
    assert run(checkout).returncode == 6
    assert f"--python {checkout}/bin/python3.13 " in (checkout / "asked").read_text()


def test_what_runs_out_of_the_environment_is_named_when_that_is_replaced(checkout: Path) -> None:
    assert "run out of" not in run(checkout).stderr
    (checkout / ".venv/bin/airflow").symlink_to(str(shutil.which("sleep")))
    with subprocess.Popen([checkout / ".venv/bin/airflow", "300"]) as running:
        try:
            (checkout / "uv.lock").write_text("another")
            said = run(checkout).stderr
        finally:
            running.kill()
    assert "1 processes run out of the .venv that is replaced now: stop and start them afterwards" in said
    assert f"tidemark:   {running.pid} airflow 300" in said
    assert "run out of" not in run(checkout).stderr


def test_every_command_runs_when_many_begin_before_the_java_is_known(checkout: Path) -> None:
    stamp = checkout / ".tidemark/setup.stamp"
    for _ in range(5):
        (checkout / ".tidemark/java").unlink(missing_ok=True)
        started = [start(checkout) for _ in range(8)]
        said = [each.communicate(timeout=120) for each in started]
        assert [each.returncode for each in started] == [0] * 8, said
        assert said == [("runs -P -m include.cli status\n", "")] * 8
        assert stamp.exists()
    assert (checkout / ".tidemark/java").read_text().endswith(f"{checkout / 'java/bin/java'}\n")


def test_command_runs_when_the_launcher_is_a_link_in_a_folder_of_programs(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "tidemark").symlink_to("../tidemark")
    done = run(checkout, program=str(tmp_path / "programs" / "tidemark"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs -P -m include.cli status\n", "")


def test_command_runs_when_the_shell_looks_for_folders_elsewhere(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "there").mkdir(parents=True)
    (tmp_path / "there").symlink_to(tmp_path)
    done = run(checkout, cwd=tmp_path, program="there/tidemark", CDPATH=str(tmp_path / "elsewhere"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs -P -m include.cli status\n", "")


def test_own_code_runs_when_the_working_folder_has_code_of_the_same_name(checkout: Path, tmp_path: Path) -> None:
    program(checkout / ".venv/bin/python", f'exec {sys.executable} "$@"')
    for root in (checkout, tmp_path / "staging"):
        (root / "include/cli").mkdir(parents=True, exist_ok=True)
        (root / "include/__init__.py").touch()
        (root / "include/cli/__init__.py").touch()
        (root / "include/cli/__main__.py").write_text("print(__file__)")
    done = run(checkout, cwd=tmp_path / "staging")
    assert (done.stdout, done.stderr) == (f"{checkout}/include/cli/__main__.py\n", "")


def test_options_of_other_programs_jvms_reach_none_when_the_shell_exports_them(checkout: Path) -> None:
    names = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
    program(checkout / ".venv/bin/python", "env")
    told = run(checkout, **dict.fromkeys(names, "-XX:+UseG1GC"), TIDEMARK_JVM_OPTIONS="-Xint").stdout.splitlines()
    assert "TIDEMARK_JVM_OPTIONS=-Xint" in told
    assert not [line for line in told if line.startswith(names)]


def test_proxies_of_socks_are_not_passed_on_when_the_shell_exports_them(checkout: Path) -> None:
    program(checkout / ".venv/bin/python", "env")
    exported = {"ALL_PROXY": "socks5://proxy:1080", "https_proxy": "SOCKS4://proxy", "http_proxy": "http://proxy:3128"}
    told = run(checkout, **exported).stdout.splitlines()
    assert [line for line in told if line.partition("=")[0] in exported] == ["http_proxy=http://proxy:3128"]


def test_command_has_a_locale_of_utf_8_when_the_shell_has_none(checkout: Path) -> None:
    program(checkout / ".venv/bin/python", 'echo "$LC_ALL $TZ"')
    assert run(checkout, "env", "--unset=LC_ALL", "--unset=LANG").stdout == "C.UTF-8 UTC\n"


def test_set_up_is_readable_by_other_accounts_when_root_keeps_files_to_itself(checkout: Path) -> None:
    """By that of PostgreSQL, which does not run as root, and by those that start Tidemark from there."""
    shutil.rmtree(checkout / ".tidemark")
    program(checkout / "bin/uv", f'touch "{checkout}/installed"')
    program(checkout / ".venv/bin/python", f'[ "$1" != -P ] || shift; umask > "{checkout}/umask of $2"')
    done = run(checkout, "sh", "-c", 'umask 077; exec "$@"', "sh")
    assert done.returncode == 0, done.stderr
    made = (checkout / name for name in ("installed", ".tidemark", ".tidemark/setup.stamp"))
    assert [each.stat().st_mode & 0o777 for each in made] == [0o644, 0o755, 0o644]
    umasks = {path.name.removeprefix("umask of "): path.read_text() for path in checkout.glob("umask of *")}
    modules = ("include.spark.jars", "include.spark.class_training", "include.spark.compiled_jars")
    assert umasks == {**dict.fromkeys(modules, "0022\n"), "include.cli": "0077\n"}


def without_rights() -> list[str]:
    """Return the beginning of a command that runs without what lets root read and write wherever it likes."""
    without = "-dac_override,-dac_read_search,-fowner"
    return ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}"] if os.geteuid() == 0 else []


def test_command_runs_when_another_account_keeps_what_it_noted_to_itself(checkout: Path) -> None:
    run(checkout)
    for name in ("seen", "java"):
        (checkout / ".tidemark" / name).chmod(0)
    done = run(checkout, *without_rights())
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs -P -m include.cli status\n", "")


def test_owner_is_asked_for_when_the_set_up_is_missing_and_its_user_cannot_write_to_the_checkout(
    checkout: Path,
) -> None:
    state = checkout / ".tidemark"
    (checkout / "uv.lock").write_text("another")
    state.chmod(0o555)
    try:
        refused = run(checkout, *without_rights())
    finally:
        state.chmod(0o755)
    assert (refused.returncode, refused.stdout) == (64, "")
    assert refused.stderr == (
        f"tidemark: the set-up of {checkout} is not that of its code, and this user cannot write to {state} — its "
        "owner must start ./tidemark once\n"
    )
    assert (state / "setup.stamp").exists()


@pytest.mark.parametrize("kept", ["", "setup.stamp"])
def test_owner_is_told_to_let_others_read_the_set_up_when_it_keeps_it_to_itself(checkout: Path, kept: str) -> None:
    state = checkout / ".tidemark"
    (state / kept).chmod(0)
    try:
        refused = run(checkout, *without_rights())
    finally:
        (state / kept).chmod(0o755)
    assert (refused.returncode, refused.stdout) == (64, "")
    assert refused.stderr == (
        f"tidemark: this user cannot read the set-up in {state} — its owner must let others: chmod go+rx {state}; "
        f"chmod -R go+rX {state}/classes {state}/jars {state}/tools {state}/setup.stamp {checkout}/.venv\n"
    )
    assert (state / "setup.stamp").exists()


@contextmanager
def closed(*folders: Path, mode: int = 0) -> Iterator[None]:
    """Let nobody enter, or with another mode write to, these folders."""
    for each in folders:
        each.chmod(mode)
    try:
        yield
    finally:
        for each in folders:
            each.chmod(0o755)


def test_owner_is_told_of_its_python_when_others_cannot_enter_its_folder(checkout: Path) -> None:
    state, python = checkout / ".tidemark", checkout / "home/python3.13"
    python.parent.mkdir()
    (checkout / ".venv/bin/python").rename(python)
    (checkout / ".venv/bin/python").symlink_to(python)
    with closed(python.parent), closed(state, mode=0o555):
        refused = run(checkout, *without_rights())
    assert (refused.returncode, refused.stdout) == (64, "")
    assert refused.stderr.startswith(f"tidemark: this user cannot run {python}, the Python of {checkout}/.venv — its ")
    # Nothing of it is there: its owner has to set it up again.
    python.unlink()
    with closed(state, mode=0o555):
        assert "is not that of its code" in run(checkout, *without_rights()).stderr


def test_owner_is_told_to_let_others_read_the_set_up_when_only_its_environment_is_closed(checkout: Path) -> None:
    with closed(checkout / ".venv"):
        refused = run(checkout, *without_rights())
    assert "this user cannot read the set-up" in refused.stderr
    assert (checkout / ".tidemark/setup.stamp").exists()


@pytest.fixture
def of_cron(checkout: Path) -> dict[str, str]:
    """The environment of a job that knows of no Java, after a command that had one; the system has none."""
    launcher = checkout / "tidemark"
    launcher.write_text(launcher.read_text().replace("/usr/lib/jvm/", f"{checkout}/jvm/"))
    assert run(checkout).returncode == 0
    path = without_programs(checkout)
    (checkout / "bin/setpriv").symlink_to(str(shutil.which("setpriv")))
    return {"JAVA_HOME": "", "PATH": path}


def test_java_of_the_command_before_is_taken_when_a_job_knows_of_none(checkout: Path, of_cron: dict[str, str]) -> None:
    done = run(checkout, **of_cron)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("-m include.cli status\n")


@pytest.mark.parametrize("java", ["of another's home", "gone from where this user cannot write"])
def test_set_up_stays_and_java_is_asked_for_when_only_this_user_finds_none(
    checkout: Path, of_cron: dict[str, str], java: str
) -> None:
    state = checkout / ".tidemark"
    if "gone" in java:
        shutil.rmtree(checkout / "java")
    with closed(state, mode=0o555) if "gone" in java else closed(checkout / "java"):
        refused = run(checkout, *without_rights(), **of_cron)
    assert (refused.returncode, refused.stdout) == (64, "")
    assert refused.stderr.startswith(
        f"tidemark: this user finds no Java 17 or newer (the last that ran here is {checkout}/java/bin/java) — set "
    )
    assert (state / "setup.stamp").exists()


def test_set_up_begins_again_when_its_java_is_gone(checkout: Path, of_cron: dict[str, str]) -> None:
    shutil.rmtree(checkout / "java")
    refused = run(checkout, **of_cron)
    assert (refused.returncode, refused.stderr) == (
        64,
        "tidemark: Java 17 or newer has gone — start again to install it\n",
    )
    assert not (checkout / ".tidemark/setup.stamp").exists()


@pytest.mark.parametrize("sign", NOT_IN_FOLDERS)
def test_nothing_is_installed_when_java_would_read_another_path(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, sign: str
) -> None:
    (checkout / ".tidemark/setup.stamp").unlink()
    moved = shutil.copytree(checkout, tmp_path_factory.mktemp("moved") / f"a{sign}b")
    failed = run(moved)
    assert (failed.returncode, failed.stdout) == (64, "")
    assert f"than {moved} — move this checkout" in failed.stderr
    assert sign in failed.stderr.split("without any of")[1]


def test_environment_is_installed_when_the_path_has_blanks_and_signs(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (checkout / ".tidemark/setup.stamp").unlink()
    moved = shutil.copytree(checkout, tmp_path_factory.mktemp("moved") / "my löke @2+(1)&=~;")
    failed = run(moved)
    assert (failed.returncode, "could not be installed" in failed.stderr) == (6, True)


def test_command_runs_when_its_user_cannot_write_to_the_checkout(checkout: Path) -> None:
    state = checkout / ".tidemark"
    state.chmod(0o555)
    try:
        done = run(checkout, *without_rights())
    finally:
        state.chmod(0o755)
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs -P -m include.cli status\n", "")
    assert sorted(each.name for each in state.iterdir()) == ["setup.stamp", "tools"]
