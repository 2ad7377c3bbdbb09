"""Throw-away certificates for the TLS tests."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.config.connections import TlsSection

_NOW = datetime.datetime.now(datetime.UTC)
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """A certificate authority with its files in `directory`."""

    directory: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def ca(self) -> Path:
        return self.directory / f"{self.name}-ca.pem"

    def issue(self, name: str, *hosts: str, expired: bool = False, ca: Path | None = None) -> TlsSection:
        """The TLS section of a service called `name` with a certificate for `hosts`; it trusts `ca` or us."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts or (name,)])
        certificate = (
            _builder(name, self.certificate.subject, expired)
            .public_key(key.public_key())
            .add_extension(alternatives, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        files = self.directory / f"{self.name}-{name}.pem", self.directory / f"{self.name}-{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(_private_pem(key))
        return TlsSection(cert=files[0], key=files[1], ca=ca or self.ca)


def make_authority(directory: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} CA")])
    certificate = (
        _builder(f"{name} CA", subject, False)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority = Authority(directory, name, key, certificate)
    authority.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return authority


def _builder(name: str, issuer: x509.Name, expired: bool) -> x509.CertificateBuilder:
    end = _NOW - _DAY if expired else _NOW + _DAY
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 2 * _DAY)
        .not_valid_after(end)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
