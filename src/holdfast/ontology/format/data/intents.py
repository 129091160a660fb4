"""Rows, what is current of them, and intents: how an identity should be, and what it is expected to be now. Pure.

An expectation is about the committed state that the commit rests on, never about other intents.
"""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from holdfast.ontology.types.refs import TypeId

Identity = tuple[str, ...]
"""``(entity_key,)``, or ``(left_key, right_key, instance_key)``."""


class Current(NamedTuple):
    """What the latest row of an identity says."""

    commit_id: int
    digest: bytes
    retracted: bool = False
    other: bytes | None = None
    """The digest of the same fields in our spelling, where a plain writer has another."""

    def says(self, wanted: bytes) -> bool:
        return wanted in (self.digest, self.other)


@dataclass(frozen=True, slots=True)
class Absent:
    """Expect that the identity does not exist, or was retracted."""


@dataclass(frozen=True, slots=True)
class AtCommit:
    """Expect that the identity was last written by this commit."""

    commit_id: int


@dataclass(frozen=True, slots=True)
class Equal:
    """Expect that the identity has these fields."""

    digest: bytes


Expectation = Absent | AtCommit | Equal


@dataclass(frozen=True, slots=True)
class Intent:
    type_id: TypeId
    identity: Identity
    fields_json: str | None
    """Canonical; None to retract."""
    expect: Expectation | None = None


class Row(NamedTuple):
    identity: Identity
    fields_json: str
    retracted: bool = False


class Change(NamedTuple):
    """A row to be written; ``fields_json`` is None where a retraction must keep what is current."""

    identity: Identity
    fields_json: str | None


class Known(Protocol):
    """What is current of one type."""

    def get(self, identity: Identity, /) -> Current | None: ...


def digest(fields_json: str) -> bytes:
    return hashlib.blake2b(fields_json.encode(), digest_size=16).digest()
