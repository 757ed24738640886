"""Certificates of a NATS server: those that are given, or of a test CA that is made here."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services._runtime.command.errors import BadFileError
from services.cli.nats.keys import write_secret

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca.key"
SERVER_FILE: Final = "server.pem"
SERVER_KEY_FILE: Final = "server.key"
CA_DAYS: Final = 1_825
SERVER_DAYS: Final = 365
RENEW_WITHIN: Final = dt.timedelta(days=30)
_CLOCK_SKEW: Final = dt.timedelta(hours=1)
_DNS_NAME: Final = re.compile(r"(?!-)(\*\.)?[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Certificates:
    """What stands in a directory."""

    hosts: tuple[str, ...]
    """Names and addresses that the server's certificate is for."""
    expires: dt.datetime
    is_test: bool
    """Of a test CA, whose key is here."""
    made: tuple[str, ...] = ()
    """Files written now."""


def check_host(host: str) -> str:
    """A name or address for a certificate.

    Raises:
        ValueError: neither.
    """
    try:
        return str(ip_address(host))
    except ValueError:
        if len(host) > 253 or _DNS_NAME.fullmatch(host) is None:
            raise ValueError(f"{host!r} is neither a host name nor an address") from None
        return host


def make_authority(now: dt.datetime) -> Pair:
    """A test CA: a self-signed certificate that may sign those of servers."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Turnbuckle test CA")])
    made = (
        _builder(name, name, key, now, now + dt.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pair(made, key)


def make_server(authority: Pair, hosts: Iterable[str], now: dt.datetime) -> Pair:
    """A server's certificate for these names and addresses; also good for its connections to servers of its cluster."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = _load_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + dt.timedelta(days=SERVER_DAYS), issuer.not_valid_after_utc)
    names = [_general_name(host) for host in hosts]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Turnbuckle NATS server")])
    made = (
        _builder(subject, issuer.subject, key, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(made, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: dt.datetime, until: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("no key of a test CA")  # noqa: TRY004 - the content is wrong, not a type of ours
    return key


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host.rstrip("."))


def ensure(directory: Path, hosts: tuple[str, ...], now: dt.datetime) -> Certificates:
    """Use the certificates in a directory; make a test CA where there is nothing, and renew what it has signed.

    Args:
        directory: for `CA_FILE`, `SERVER_FILE`, `SERVER_KEY_FILE`, and `CA_KEY_FILE` of a test CA.
        hosts: names and addresses that a test CA's certificate has to be for; those that it has already stay.
        now: with a time zone.

    Raises:
        BadFileError: some files are missing, cannot be used, or cannot be written.
    """
    needed = (CA_FILE, SERVER_FILE, SERVER_KEY_FILE)
    there = {name for name in (*needed, CA_KEY_FILE) if (directory / name).exists()}
    try:
        if CA_KEY_FILE not in there and there:
            if missing := [name for name in needed if name not in there]:
                raise BadFileError(
                    f"{directory} lacks {', '.join(missing)}: put all of {', '.join(needed)} there, or nothing to have"
                    " a test CA made"
                )
            return _examine(directory, is_test=False)
        directory.mkdir(parents=True, exist_ok=True)
        return _ensure_test(directory, hosts, now)
    except OSError as error:
        raise BadFileError(f"{error.filename or directory}: {error.strerror}") from error


def _ensure_test(directory: Path, hosts: tuple[str, ...], now: dt.datetime) -> Certificates:
    made = []
    if _needs_authority(directory, now):
        authority = make_authority(now)
        _write(directory, authority, CA_FILE, CA_KEY_FILE)
        made += [CA_FILE, CA_KEY_FILE]
    elif (directory / SERVER_FILE).exists() and (directory / SERVER_KEY_FILE).exists():
        found = _examine(directory, is_test=True)
        if set(hosts) <= set(found.hosts) and found.expires > now + RENEW_WITHIN:
            return found
        hosts = tuple(dict.fromkeys((*found.hosts, *hosts)))
    authority = Pair((directory / CA_FILE).read_bytes(), (directory / CA_KEY_FILE).read_bytes())
    try:
        server = make_server(authority, hosts, now)
    except ValueError as error:
        raise BadFileError(f"{directory / CA_KEY_FILE} and {CA_FILE} are no test CA that can sign: {error}") from error
    _write(directory, server, SERVER_FILE, SERVER_KEY_FILE)
    found = _examine(directory, is_test=True)
    return Certificates(found.hosts, found.expires, is_test=True, made=(*made, SERVER_FILE, SERVER_KEY_FILE))


def _needs_authority(directory: Path, now: dt.datetime) -> bool:
    if not (directory / CA_KEY_FILE).exists() or not (directory / CA_FILE).exists():
        return True
    try:
        found = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
    except ValueError as error:
        raise BadFileError(f"{directory / CA_FILE} is no certificate: {error}") from error
    return found.not_valid_after_utc <= now + RENEW_WITHIN


def _write(directory: Path, pair: Pair, certificate: str, key: str) -> None:
    write_secret(directory / key, pair.key.decode())
    (directory / certificate).write_bytes(pair.certificate)
    (directory / certificate).chmod(0o644)


def _examine(directory: Path, *, is_test: bool) -> Certificates:
    path = directory / SERVER_FILE
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise BadFileError(f"{path} is no certificate with names or addresses of a server: {error}") from error
    hosts = tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))
    return Certificates(hosts, certificate.not_valid_after_utc, is_test=is_test)
