"""Versions are the hash of all bytes, whatever was hashed before; of a body that grew only the rest is hashed."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.objects.local import LocalStore, hashes
from holdfast.objects.local.hashes import Hashes
from holdfast.objects.store import CREATE, IfMatch, Written, content_version

BODIES = st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=6), st.booleans()), max_size=12)


@given(BODIES)
def test_a_version_is_the_hash_of_all_bytes(writes: list[tuple[str, bytes, bool]]) -> None:
    kept, bodies = Hashes(), {"a": b"", "b": b""}
    for key, piece, grows in writes:
        bodies[key] = bodies[key] + piece if grows else piece
        assert kept.version(key, bodies[key]) == content_version(bodies[key])


class Counting:
    """Stands in for hashlib: the real hashes, and how many bytes they were given."""

    def __init__(self) -> None:
        self.hashed = 0

    def sha256(self, body: bytes) -> "Hasher":
        return Hasher(self, body)


class Hasher:
    def __init__(self, counting: Counting, body: bytes) -> None:
        self._counting = counting
        self._body = b""
        self.update(body)

    def update(self, piece: Any) -> None:
        self._counting.hashed += len(piece)
        self._body += bytes(piece)

    def hexdigest(self) -> str:
        return str(content_version(self._body))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    monkeypatch.setattr(hashes, "hashlib", counting)
    return counting


def test_only_what_was_appended_is_hashed(counting: Counting) -> None:
    kept = Hashes()
    for lines in range(1, 11):
        kept.version("journal", b"line" * lines)
    assert counting.hashed == 4 * 10


def test_a_body_that_did_not_grow_out_of_the_last_is_hashed_whole(counting: Counting) -> None:
    kept = Hashes()
    kept.version("a", b"12345678")
    kept.version("b", b"12345678x")
    kept.version("a", b"1234567y9")
    assert counting.hashed == 8 + 9 + 9


def test_large_bodies_and_many_are_not_kept(counting: Counting) -> None:
    kept = Hashes()
    large = bytes(hashes.LARGEST_BYTES + 1)
    kept.version("large", large)
    kept.version("large", large + b"x")
    assert counting.hashed == 2 * len(large) + 1
    counting.hashed = 0
    kept.version("first", b"1")
    for number in range(hashes.BODIES):
        kept.version(f"other {number}", b"")
    kept.version("first", b"12")
    assert counting.hashed == 1 + 2


async def test_a_journal_of_a_store_is_hashed_once(tmp_path: Path, counting: Counting) -> None:
    store, body = LocalStore(tmp_path), b"start"
    outcome = await store.put("runs/r/journal", body, CREATE)
    for _ in range(8):
        assert isinstance(outcome, Written)
        body += b"step"
        outcome = await store.put("runs/r/journal", body, IfMatch(outcome.version))
        assert outcome == Written(content_version(body))
    assert counting.hashed == len(body)
    assert (await store.get("runs/r/journal")).version == content_version(body)
