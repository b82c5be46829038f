"""Certificates for tests, made with the openssl command: an authority, and what it signs."""

import ssl
import subprocess
from pathlib import Path


def openssl(*arguments: str) -> None:
    """Runs openssl; fails with its output."""
    ended = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


class Authority:
    """A certificate authority whose files lie in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", str(self.key), "-out", str(self.certificate),
        )  # fmt: skip

    def sign(self, name: str, field: str = "CN") -> tuple[Path, Path]:
        """A new certificate for localhost, and its key; those of the same name are replaced. This field of the subject
        has the name."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        extensions = self.folder / f"{name}.extensions"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/{field}={name}",
            "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self.key), "-days", "2",
            "-CAcreateserial", "-extfile", str(extensions), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key

    def context(self, *own: Path) -> ssl.SSLContext:
        """The TLS context of a client that trusts this authority, with a certificate if given."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if own:
            context.load_cert_chain(*(str(path) for path in own))
        return context
