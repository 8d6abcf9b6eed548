"""The owner of a request: its API key, under a name that identifies the key without revealing it."""

from __future__ import annotations

import hashlib

from starlette.types import Scope

OWNER = "mysglang.owner"
ADMIN = "mysglang.admin"
OWNER_DIGITS = 32
"""Enough of a key's digest to tell keys apart, and too little to find a key by."""


def owner_of(scope: Scope) -> str:
    """Returns the name of the API key that the request has; empty where no key is needed, so that all clients are one
    owner.
    """
    owner: str = scope.get(OWNER, "")
    return owner


def owner_name(key: str) -> str:
    """Returns the name of a key, by which what came with it is known."""
    return digest(key.encode()).hex()[:OWNER_DIGITS]


def is_admin(scope: Scope) -> bool:
    """Returns whether a request came with the admin key, on a path that needs it."""
    return ADMIN in scope


def digest(key: bytes) -> bytes:
    """Returns the digest that is compared and stored instead of `key`."""
    # Compared as digests, so that not even the length of a key shows in the time that it takes.
    return hashlib.sha256(key).digest()
