"""When a journal is sealed, into what, and how its head line says so."""

import pytest

from holdfast.base.errors import Corrupt, Incompatible, Invalid
from holdfast.runs.journal.segments import (
    Head,
    Ref,
    Seal,
    SegmentPolicy,
    format_head,
    joined,
    make_ref,
    parse_head,
    plan_seal,
    split_lines,
)

POLICY = SegmentPolicy()


def ref(level: int, first: int, count: int, size: int = 100) -> Ref:
    return Ref(level, first, count, size, f"a{first}", "0" * 64)


def row(level: int, count: int, lines: int = 32, first: int = 0, size: int = 100) -> tuple[Ref, ...]:
    return tuple(ref(level, first + n * lines, lines, size) for n in range(count))


def test_sealing_is_due_when_the_tail_is_long_and_large() -> None:
    kib = b"x" * 1024
    assert not POLICY.is_due([kib] * 31)
    assert POLICY.is_due([kib] * 32)
    assert not POLICY.is_due([b"x"] * 1000)
    assert not POLICY.is_due([kib * 100] * 31)


@pytest.mark.parametrize(
    ("refs", "end", "seal"),
    [
        ((), 32, Seal(0, 0, 32, ())),
        (row(0, 6), 224, Seal(0, 192, 224, row(0, 6))),
        (row(0, 7), 256, Seal(1, 0, 256, ())),
        (row(1, 7, 256), 1824, Seal(0, 1792, 1824, row(1, 7, 256))),
        (row(1, 7, 256) + row(0, 7, first=1792), 2048, Seal(2, 0, 2048, ())),
        (row(1, 3, 256) + row(0, 7, first=768), 1024, Seal(1, 768, 1024, row(1, 3, 256))),
        (row(0, 7, size=10_000_000), 256, Seal(0, 224, 256, row(0, 7, size=10_000_000))),
    ],
)
def test_a_seal_carries_like_a_number_with_eight_digits(refs: tuple[Ref, ...], end: int, seal: Seal) -> None:
    assert plan_seal(POLICY, refs, end, 32 * 1024) == seal


def test_the_head_reads_back() -> None:
    head = Head(2, 7, (ref(1, 0, 256), ref(0, 256, 32)))
    line = format_head(head)
    assert line.startswith(b'{"format":1,')
    assert parse_head(line, key="k") == head


def test_an_entry_is_no_head() -> None:
    assert parse_head(b'{"type":"start"}\n', key="k") is None
    assert parse_head(b'{"type":"step","name":"segments"}\n', key="k") is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"segments","generation":0,"session":1,"refs":[]}',
        b'{"type":"segments","generation":0,"session":1,"refs":[[0,1,2,3,"a","b"]]}',
        b'{"type":"segments","generation":0,"session":1,"refs":[[0,0,2,3,"a","b"],[0,3,2,3,"a","b"]]}',
        b'{"type":"segments","generation":0,"session":1,"refs":[[0,0]]}',
        b'{"type":"segments","generation":0,"refs":[[0,0,2,3,"a","b"]]}',
        b'{"type":"segments"',
    ],
)
def test_a_damaged_head_is_corrupt(line: bytes) -> None:
    with pytest.raises(Corrupt, match=r"^k: "):
        parse_head(line, key="k")


def test_a_newer_head_is_refused_not_misread() -> None:
    with pytest.raises(Incompatible, match="format 2"):
        parse_head(b'{"type":"segments","format":2}', key="k")


def test_lines_keep_their_bytes() -> None:
    assert split_lines(b"") == []
    assert split_lines(b"a\nb\r\n\n") == [b"a\n", b"b\r\n", b"\n"]
    assert split_lines(b"a\nb") == [b"a\n", b"b\n"]


def test_a_reference_describes_its_bytes() -> None:
    made = make_ref(Seal(1, 64, 96, ()), b"abc", "x")
    assert (made.count, made.size, made.end) == (32, 3, 96)
    assert joined([ref(0, 0, 4), ref(0, 4, 1)])
    assert not joined([ref(0, 0, 4), ref(0, 5, 1)])


def test_a_policy_that_never_merges_is_refused() -> None:
    with pytest.raises(Invalid):
        SegmentPolicy(fan_in=1)
