"""An operator, an account and a user for nats-server's decentralised authentication."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from dataclasses import dataclass
from typing import Any

import nkeys

_UNLIMITED = {
    "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True,
    "conn": -1, "leaf": -1,
}  # fmt: skip
_JETSTREAM = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


@dataclass(frozen=True, slots=True)
class Operator:
    """What goes into the server's configuration, and the credentials of its one user."""

    server_config: str
    creds: str
    seed: str


@dataclass(frozen=True, slots=True)
class Nkey:
    """A user's key without any JWT."""

    public: str
    seed: str


def make_nkey() -> Nkey:
    user = _make_pair("U")
    return Nkey(_public(user), bytes(user.seed).decode())


def make_operator() -> Operator:
    """Make an operator whose account may use JetStream without limits."""
    operator, system, account, user = (_make_pair(kind) for kind in "OAAU")
    system_jwt = _sign(operator, system, "SYS", "account", {"limits": _UNLIMITED})
    account_jwt = _sign(
        operator, account, "APP", "account", {"limits": {**_UNLIMITED, **_JETSTREAM}}
    )
    user_jwt = _sign(account, user, "bridge", "user", {"subs": -1, "data": -1, "payload": -1})
    config = f"""
        operator: {_sign(operator, operator, "OP", "operator", {})}
        system_account: {_public(system)}
        resolver: MEMORY
        resolver_preload: {{
          {_public(system)}: {system_jwt}
          {_public(account)}: {account_jwt}
        }}
    """
    seed = bytes(user.seed).decode()
    creds = (
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return Operator(config, creds, seed)


def _make_pair(kind: str) -> Any:
    prefixes = {
        "O": nkeys.PREFIX_BYTE_OPERATOR,
        "A": nkeys.PREFIX_BYTE_ACCOUNT,
        "U": nkeys.PREFIX_BYTE_USER,
    }
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), prefixes[kind])))


def _public(pair: Any) -> str:
    return bytes(pair.public_key).decode()


def _sign(issuer: Any, subject: Any, name: str, kind: str, claims: dict[str, Any]) -> str:
    payload = {
        "iat": int(time.time()),
        "iss": _public(issuer),
        "name": name,
        "sub": _public(subject),
        "nats": {**claims, "type": kind, "version": 2},
    }
    digest = hashlib.new("sha512_256", json.dumps(payload).encode()).digest()
    payload["jti"] = base64.b32encode(digest).decode().rstrip("=")
    head = _encode(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = _encode(json.dumps(payload).encode())
    return f"{head}.{body}.{_encode(issuer.sign(f'{head}.{body}'.encode()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
