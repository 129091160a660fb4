"""Keys as the specification has them, and back."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.objects.store import check_key
from holdfast.telemetry.accept import layout
from holdfast.telemetry.identity import MAX_AGENT_BYTES, MAX_BOOT_BYTES, MAX_SEQ, BatchIdentity

IDENTITY = BatchIdentity("agent-a", "boot", 10, 20)
PATH = "agent=6167656e742d61/boot=626f6f74/00000000000000000010-00000000000000000020"
SHA = "abcd" + "0" * 60
NOON_NS = 1_760_011_200 * 10**9


def test_keys_are_those_of_the_specification() -> None:
    day = "date=2025-10-09/hour=12/"
    assert layout.blob_key(SHA) == f"raw-blobs/v1/sha256/ab/cd/{SHA}.lmbatch"
    assert layout.accepted_key(IDENTITY) == f"accepted/v1/{PATH}.json"
    assert layout.conflict_key(IDENTITY, SHA) == f"quarantine/v1/identity-conflict/{PATH}/{SHA}.json"
    assert layout.accepted_by_blob_key(SHA, IDENTITY) == f"accepted-by-blob/v1/sha256/ab/cd/{SHA}/{PATH}.json"
    assert layout.conflict_by_blob_key(SHA, IDENTITY) == f"quarantine-by-blob/v1/sha256/ab/cd/{SHA}/{PATH}.json"
    assert layout.blob_by_time_key(NOON_NS, SHA) == f"raw-blobs-by-time/v1/{day}sha256={SHA}.json"
    assert layout.accepted_by_time_key(NOON_NS, IDENTITY) == f"accepted-by-time/v1/{day}{IDENTITY.manifest_id}.json"


def test_an_identity_is_found_again_in_its_keys() -> None:
    odd = BatchIdentity("äé/.. %", "\u2603", 0, MAX_SEQ)
    for identity in (IDENTITY, odd):
        assert layout.identity_in(layout.accepted_key(identity)) == identity
        assert layout.identity_in(layout.conflict_key(identity, SHA)) == identity
    assert layout.identity_in("accepted/v1/agent=zz/boot=00/1-2.json") is None
    assert layout.identity_in(f"accepted/v1/agent=ff/boot=00/{0:020d}-{0:020d}.json") is None
    assert layout.blob_hash(layout.blob_key(SHA)) == SHA
    assert layout.blob_hash(f"raw-blobs/v1/sha256/00/00/{SHA}.lmbatch") is None
    assert layout.immutable(layout.blob_key(SHA))
    assert not layout.immutable(layout.accepted_key(IDENTITY))


def test_the_longest_identity_fits_into_every_key_with_room_for_a_prefix() -> None:
    longest = BatchIdentity("a" * MAX_AGENT_BYTES, "b" * MAX_BOOT_BYTES, MAX_SEQ, MAX_SEQ)
    for key in (
        layout.accepted_by_blob_key(SHA, longest),
        layout.conflict_by_blob_key(SHA, longest),
        layout.conflict_key(longest, SHA),
    ):
        assert check_key(key, prefix_bytes=400) == key
        assert max(map(len, key.split("/"))) <= 255


def test_identities_are_told_apart_by_their_manifest_id() -> None:
    others = [
        BatchIdentity("agent-a", "boot", 10, 21),
        BatchIdentity("agent-a", "boo", 10, 20),
        BatchIdentity("agent-ab", "oot", 10, 20),
    ]
    assert len({IDENTITY.manifest_id, *(other.manifest_id for other in others)}) == 4
    assert str(IDENTITY) == "agent-a/boot 10-20"


@pytest.mark.parametrize(
    "parts",
    [
        ("", "b", 0, 0),
        ("a" * (MAX_AGENT_BYTES + 1), "b", 0, 0),
        ("a", "b" * (MAX_BOOT_BYTES + 1), 0, 0),
        ("a\n", "b", 0, 0),
        ("\ud800", "b", 0, 0),
        ("a", "b", 5, 4),
        ("a", "b", -1, 4),
        ("a", "b", 0, MAX_SEQ + 1),
    ],
)
def test_an_invalid_identity_is_refused(parts: tuple[str, str, int, int]) -> None:
    with pytest.raises(Invalid):
        BatchIdentity(*parts)


def test_an_invalid_hash_is_refused() -> None:
    with pytest.raises(Invalid, match="no SHA-256"):
        layout.blob_key("../../etc")
