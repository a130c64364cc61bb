"""Flower's commands, keys and certificates for a study: encrypted, with nodes authenticated by their keys.

In production, a SuperLink's certificate comes from an authority that parties already trust. `write_authority` is for a
consortium without one, for tests and for examples.

    files = write_authority(folder, "127.0.0.1")
    link = Link("127.0.0.1:9091", files.authority)
    with SupervisedProcess(superlink(link, files, folder / "link.db"), environment(home), folder / "link.log"):
        write_link(home, link)                      # so that the flwr command finds the SuperLink
        register(home, public_key_of_a_party)
        submit(home, write_app(folder / "app", {"coordinator": "package.module:function"}))

A SuperLink authenticates nodes, but accepts runs, and executes their ServerApp's code, from anyone who can reach its
port. Put a proxy in front of it that lets others than the coordinator reach only paths under /v1/fleet/, which is all
that a party needs. A run can only send requests to a party, as any coordinator can.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpvalue.errors import DpvalueError
from dpvalue.storage import write_secret, write_whole

_LIFETIME = timedelta(days=825)


@dataclass(frozen=True)
class Certificates:
    """Files of a SuperLink: the authority's certificate (for all), its own certificate, and its secret key."""

    authority: Path
    certificate: Path
    key: Path


def write_authority(folder: Path, host: str) -> Certificates:
    """Write a new authority and a certificate by it for a host (a name or an IP address), and return the files.

    The authority's own key is not stored: it signs nothing else.
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
    """Write a new key of a SuperNode (ECDSA P-384, OpenSSH's format) and its public key; return the latter's path."""
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


_NAME = "study"

_LIMIT = 120.0  # seconds of one flwr command

_APP = """\
[project]
name = "dpvalue-study"
version = "1.0.0"
description = "A study of dpvalue; its code is installed, not sent."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "dpvalue"

[tool.flwr.app.components]
serverapp = "dpvalue.flower.app:app"
clientapp = "dpvalue.flower.app:refusing"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Link:
    """The address of a SuperLink and the certificate of its authority."""

    address: str
    authority: Path


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower process: its files in `home`; no telemetry, update check, proxy or install."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith("FLWR_")
    }
    return {
        **inherited,
        "PATH": os.pathsep.join([str(_programs()), inherited.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def superlink(link: Link, files: Certificates, database: Path) -> list[str]:
    """Return the command of a SuperLink that authenticates nodes by their keys."""
    host, _, port = link.address.rpartition(":")
    return [
        *(_program("flower-superlink"), "--host", host, "--port", port, "--database", str(database)),
        *("--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)),
        *("--ssl-keyfile", str(files.key)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]


def supernode(link: Link, key: Path, port: int, secret: Path | None = None) -> list[str]:
    """Return the command of a party's SuperNode, which offers tasks at this port of this machine.

    Args:
        link: the SuperLink.
        key: the node's private key (`write_node_key`).
        port: the port for the party's agent (`serve.Node`).
        secret: a file with a shared secret of at least 32 bytes, by which the agent authenticates; None: no secret.
    """
    return [
        *(_program("flower-supernode"), "--superlink", link.address, "--root-certificates", str(link.authority)),
        *("--auth-supernode-private-key", str(key), "--isolation", "process"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *(() if secret is None else ("--superexec-auth-secret-file", str(secret))),
    ]


def write_link(home: Path, link: Link) -> None:
    """Write the address of the SuperLink into a Flower home."""
    home.mkdir(parents=True, exist_ok=True)
    address, authority = json.dumps(link.address), json.dumps(str(link.authority.absolute()))
    section = f"[superlink.{_NAME}]\naddress = {address}\nroot-certificates = {authority}\n"
    write_whole(home / "config.toml", f'[superlink]\ndefault = "{_NAME}"\n\n{section}'.encode())


def register(home: Path, public_key: Path) -> int:
    """Register a SuperNode's public key and return the node's number."""
    return int(_flwr(home, "supernode", "register", str(public_key), _NAME)["node-id"])


def write_app(folder: Path, config: Mapping[str, str | int | float | bool]) -> Path:
    """Write the app folder for `flwr run`, without code, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
    write_whole(folder / "pyproject.toml", (_APP + lines).encode())
    return folder


def submit(home: Path, app: Path) -> int:
    """Start a run of an app, and return its number."""
    return int(_flwr(home, "run", str(app), _NAME)["run-id"])


def status(home: Path, run: int) -> str:
    """Return the status of a run: "pending", "starting", "running", "finished:completed", "finished:failed", ..."""
    runs = _flwr(home, "list", "--run-id", str(run), _NAME)["runs"]
    return str(runs[0]["status"])


def _flwr(home: Path, *arguments: str) -> dict[str, Any]:
    """The JSON output of a flwr command; raises if the command fails."""
    command = [_program("flwr"), *arguments, "--format", "json"]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=_LIMIT, check=False)
    start = done.stdout.find("{")
    try:
        output = json.loads(done.stdout[start:]) if start >= 0 else {}
    except json.JSONDecodeError:
        output = {}
    if done.returncode or not output.get("success"):
        raise DpvalueError(f"flwr {' '.join(arguments)} failed: {(output or done.stdout or done.stderr)!r}")
    return dict(output)


def _program(name: str) -> str:
    """The path of one of Flower's programs."""
    path = _programs() / name
    if not path.exists():
        raise DpvalueError(f"{name} is not installed: pip install 'dpvalue[flower]'")
    return str(path)


def _programs() -> Path:
    return Path(sys.executable).parent
