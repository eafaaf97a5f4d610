"""Receivers of alerts and lineage that really listen: a mail server and a web server, on loopback."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from include.services.process import free_port


@dataclass
class Received:
    """The mails and posts that have arrived."""

    mails: list[Message] = field(default_factory=list)
    logins: list[tuple[str, str, bool]] = field(default_factory=list)
    """User and password of each login at the mail server, and whether they came by TLS."""
    posts: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    """Of each post."""
    refuses: bool = False
    """Whether the web server answers with an error."""
    refused_text: str = ""
    """The web server refuses posts with this text."""
    refused_status: int = 422
    """With which answer: that it cannot read it, unless set."""
    smtp: str = ""
    webhook: str = ""


@contextmanager
def listening(path: str = "/hook") -> Iterator[Received]:
    """Both receivers, until the block ends."""
    received = Received()
    with mail_server(received), _web_server(received, path):
        yield received


@contextmanager
def mail_server(received: Received, tls: ssl.SSLContext | None = None, port: int | None = None) -> Iterator[None]:
    """A mail server that takes any password; with `tls` it offers STARTTLS."""

    class Keep:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
            received.mails.append(message_from_bytes(envelope.content))
            return "250 kept"

    def log_in(server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        received.logins.append((given.login.decode(), given.password.decode(), session.ssl is not None))
        return AuthResult(success=True)

    port = port or free_port()
    controller = Controller(
        Keep(), hostname="127.0.0.1", port=port, tls_context=tls, authenticator=log_in, auth_require_tls=False
    )
    controller.start()
    received.smtp = f"smtp://127.0.0.1:{port}"
    try:
        yield
    finally:
        controller.stop()


@contextmanager
def _web_server(received: Received, path: str) -> Iterator[None]:
    class Keep(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = 503 if received.refuses else 204
            if received.refused_text and received.refused_text in str(body):
                status = received.refused_status
            if status == 204:
                received.posts.append(body)
                received.authorizations.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", free_port()), Keep)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    received.webhook = f"http://127.0.0.1:{server.server_port}{path}"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def tls_in(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return the TLS context of a server on loopback, and the certificate that its clients must trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, SHA256())
    )
    certificate, private = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return context, certificate


def trust(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> None:
    """Make a certificate one of the machine's own authorities, as `update-ca-certificates` would."""
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda its, _: its.load_verify_locations(certificate))
