"""Keys and certificates: who a SuperLink is, and who a SuperNode is. No program but Python is needed.

In earnest, a SuperLink's certificate comes from an authority that parties trust already; `write_authority` is for a
consortium that has none, for tests and for examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpvalue.durable import write_whole
from dpvalue.secret_files import write_secret

_LIFETIME = timedelta(days=825)


@dataclass(frozen=True)
class Certificates:
    """Files of a SuperLink: whom to trust (for everybody), its certificate, and its key (for nobody else)."""

    authority: Path
    certificate: Path
    key: Path


def write_authority(folder: Path, host: str) -> Certificates:
    """Write a new authority and a certificate by it for a host (a name or an IP address), and return the files.

    The authority's own key is forgotten: it signs nothing else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer, subject = _name("dpvalue study authority"), _name(host)
    root = _certificate(issuer, issuer, authority.public_key())
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    root = root.add_extension(_usage(signs_certificates=True), critical=True)
    root = root.add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
    leaf = _certificate(issuer, subject, server.public_key())
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.add_extension(_usage(signs_certificates=False), critical=True)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    leaf = leaf.add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
    leaf = leaf.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
    )
    pem = serialization.Encoding.PEM
    write_whole(files.authority, root.sign(authority, hashes.SHA384()).public_bytes(pem))
    write_whole(files.certificate, leaf.sign(authority, hashes.SHA384()).public_bytes(pem))
    plain = serialization.NoEncryption()
    write_secret(files.key, server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return files


def write_node_key(path: Path) -> Path:
    """Write a SuperNode's new key, ECDSA P-384 in OpenSSH's format, and the public one beside it; return the latter."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_secret(path, secret)
    public = path.with_name(f"{path.name}.pub")
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    write_whole(public, key.public_key().public_bytes(*openssh) + b"\n")
    return public


def _certificate(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    today = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + _LIFETIME)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
