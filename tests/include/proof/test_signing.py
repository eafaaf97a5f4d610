"""The key that signs proofs, where its file cannot be used: what the error says does no harm to it."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from include.errors import UsageError
from include.proof import signing
from tests.conftest import SetSettings

PASSWORD = BestAvailableEncryption(b"abcd")
ED25519 = Ed25519PrivateKey.generate()


@pytest.fixture
def key(tmp_path: Path, set_settings: SetSettings) -> Path:
    path = tmp_path / "a key.pem"
    path.touch(0o600)
    set_settings(TIDEMARK_HOME=str(tmp_path / "home"), TIDEMARK_PROOF_KEY=str(path))
    return path


def commands_of_the_error() -> list[list[str]]:
    """The commands in brackets that the error of a key that cannot be used names."""
    with pytest.raises(UsageError, match="holds no Ed25519 key") as refused:
        signing.signature_of(b"x")
    commands = [shlex.split(each) for each in re.findall(r"\((openssl [^)]*)\)", refused.value.remedy)]
    assert len(commands) == 2, refused.value.remedy
    return commands


@pytest.mark.parametrize(
    ("kind", "form", "encryption"),
    [
        ("Ed25519", PrivateFormat.PKCS8, PASSWORD),
        ("Ed25519", PrivateFormat.OpenSSH, NoEncryption()),
        ("RSA", PrivateFormat.PKCS8, NoEncryption()),
    ],
)
def test_key_stays_when_the_command_of_its_error_makes_another(
    key: Path, kind: str, form: PrivateFormat, encryption: KeySerializationEncryption
) -> None:
    made = ED25519 if kind == "Ed25519" else generate_private_key(65537, 2048)
    former = made.private_bytes(Encoding.PEM, form, encryption)
    key.write_bytes(former)
    commands = commands_of_the_error()
    assert [str(key) in each[each.index("-out") :] for each in commands] == [False, False]
    subprocess.run(commands[1], cwd=key.parent, check=True)
    assert key.read_bytes() == former


def test_former_key_signs_when_its_password_was_taken_off(key: Path, set_settings: SetSettings) -> None:
    key.write_bytes(ED25519.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, PASSWORD))
    command = commands_of_the_error()[0]
    # openssl asks for the password at a terminal.
    subprocess.run([*command, "-passin", "pass:abcd"], cwd=key.parent, check=True)
    set_settings(TIDEMARK_PROOF_KEY=str(key.parent / command[-1]))
    assert signing.own_public_key() == ED25519.public_key().public_bytes_raw().hex()
