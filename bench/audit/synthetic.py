"""A store of accepted batches that takes no memory: keys are kept in order, bodies are made when they are asked for.

Each batch is five objects: its bytes, its manifest, and the three references to it. What others write (runs, the record
of an audit) goes to a store in memory.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import NotFound
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import PAGE_SIZE, Entry, Meta, Object, Page, content_version
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.references import of_accepted
from holdfast.telemetry.identity import BatchIdentity

Keys = npt.NDArray[np.bytes_]

SECOND = 1_000_000_000
START_NS = 490_000 * 3600 * SECOND
PER_AGENT = 200
WIDEST = 240
"""Bytes of the longest key."""
PREFIXES = (
    layout.ACCEPTED,
    layout.BLOBS,
    layout.ACCEPTED_BY_TIME,
    layout.ACCEPTED_BY_BLOB,
    layout.BLOBS_BY_TIME,
)


def frame(number: int) -> bytes:
    return b"not a frame, but as good as one for who does not read it: %d" % number


def manifest(number: int, sha256: str, size: int) -> AcceptedManifest:
    return AcceptedManifest(
        identity_of(number),
        sha256,
        size,
        layout.blob_key(sha256),
        START_NS + number * SECOND,
        "c",
        1,
        1,
        {"samples": 1},
        None,
        f"{number:024x}",
    )


def identity_of(number: int) -> BatchIdentity:
    agent, seq = divmod(number, PER_AGENT)
    return BatchIdentity(f"agent-{agent:06d}", "boot", seq, seq)


class Synthetic(MemoryStore):
    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches
        self.sizes = np.zeros(batches, np.int32)
        self.hashes = np.zeros((batches, 32), np.uint8)
        # Filled in place: what a list of a million keys leaves behind in the heap would hide what is measured.
        names: dict[str, Keys] = {prefix: np.zeros(batches, f"S{WIDEST}") for prefix in PREFIXES}
        for number in range(batches):
            body = frame(number)
            digest = hashlib.sha256(body).digest()
            self.sizes[number] = len(body)
            self.hashes[number] = np.frombuffer(digest, np.uint8)
            for prefix, key in zip(PREFIXES, _keys(number, digest.hex()), strict=True):
                names[prefix][number] = key.encode()
        self._keys: dict[str, Keys] = {}
        self._order: dict[str, npt.NDArray[np.int64]] = {}
        for prefix in PREFIXES:
            found = names.pop(prefix)
            order = np.argsort(found, kind="stable")
            self._keys[prefix], self._order[prefix] = found[order], order

    def every(self) -> Iterator[Object]:
        """All objects, to be put somewhere else."""
        for prefix in PREFIXES:
            for place, key in enumerate(self._keys[prefix]):
                number = int(self._order[prefix][place])
                yield self._object(key.decode(), number)

    async def get(self, key: str) -> Object:
        number = self._number(key)
        return await super().get(key) if number is None else self._object(key, number)

    async def head(self, key: str) -> Meta:
        number = self._number(key)
        if number is None:
            return await super().head(key)
        if key.startswith(layout.BLOBS):
            return Meta(key, int(self.sizes[number]), START_NS, content_version(b""))
        found = self._object(key, number)
        return Meta(key, len(found.body), START_NS, found.version)

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        family = next((each for each in PREFIXES if prefix.startswith(each)), None)
        if family is None:
            async for page in super().list(prefix, after=after, delimiter=delimiter):
                yield page
            return
        keys = self._keys[family]
        at = int(np.searchsorted(keys, max(prefix, after or "").encode(), "right" if after is not None else "left"))
        more = True
        while more:
            entries: list[Entry] = []
            folders: list[str] = []
            while at < len(keys) and len(entries) + len(folders) < PAGE_SIZE:
                key = keys[at].decode()
                if not key.startswith(prefix):
                    break
                cut = key.find("/", len(prefix)) if delimiter else -1
                if cut < 0:
                    entries.append(Entry(key, self._size(family, at), START_NS))
                    at += 1
                else:
                    folders.append(key[: cut + 1])
                    at = int(np.searchsorted(keys, (key[:cut] + "0").encode()))
            more = at < len(keys) and keys[at].decode().startswith(prefix)
            yield Page(tuple(entries), tuple(folders))

    def _size(self, family: str, place: int) -> int:
        number = int(self._order[family][place])
        if family == layout.BLOBS:
            return int(self.sizes[number])
        return len(self._body(self._keys[family][place].decode(), number))

    def _number(self, key: str) -> int | None:
        """Which batch a key is of; None for what others wrote."""
        family = next((each for each in PREFIXES if key.startswith(each)), None)
        if family is None:
            return None
        keys = self._keys[family]
        place = int(np.searchsorted(keys, key.encode()))
        if place >= len(keys) or keys[place].decode() != key:
            raise NotFound(f"{key}: no such object")
        return int(self._order[family][place])

    def _object(self, key: str, number: int) -> Object:
        body = frame(number) if key.startswith(layout.BLOBS) else self._body(key, number)
        return Object(key, body, START_NS, content_version(body[:64]))

    def _body(self, key: str, number: int) -> bytes:
        accepted = manifest(number, self.hashes[number].tobytes().hex(), int(self.sizes[number]))
        if key.startswith(layout.ACCEPTED):
            return accepted.encode()
        return next(each.body for each in of_accepted(accepted) if each.key == key)


def _keys(number: int, sha256: str) -> tuple[str, ...]:
    """In the order of ``PREFIXES``."""
    identity = identity_of(number)
    at_ns = START_NS + number * SECOND
    return (
        layout.accepted_key(identity),
        layout.blob_key(sha256),
        layout.accepted_by_time_key(at_ns, identity),
        layout.accepted_by_blob_key(sha256, identity),
        layout.blob_by_time_key(at_ns, sha256),
    )
