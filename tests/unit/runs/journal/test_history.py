"""Journals, segments and payloads as they are read: damage is reported with its place, and is not overwritten."""

import re

import pytest

from holdfast.base.errors import Corrupt, Fenced
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import Object, Version
from holdfast.runs import layout
from holdfast.runs.journal.payload import get_payload, put_payload
from tests.unit.runs.journal.journals import TINY, Archive, step


async def long_run() -> Archive:
    archive = Archive()
    journal = await archive.begin(policy=TINY)
    for number in range(9):
        await journal.append(step(number))
    return archive


async def damage(archive: Archive, key: str, old: bytes, new: bytes) -> None:
    body = archive.shelf.objects[key].body
    assert old in body
    await archive.backend.put(key, body.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (b'"stepId":"s1"', b'"stepId":s1', r"line 3 \(offset 2\): not JSON"),
        (b'"type":"step"', b'"type":"setp"', r"line 2 \(offset 1\): 'setp' is not a type"),
        (b'"offset":2', b'"offset":7', "offset 2: offsets are contiguous"),
        (b'"session":1,"stepId":"s1"', b'"session":4,"stepId":"s1"', "offset 2: entries belong to the latest session"),
        (b'"type":"start"', b'"type":"step"', "offset 0: "),
    ],
)
async def test_a_damaged_line_is_named_and_left(old: bytes, new: bytes, complaint: str) -> None:
    archive = Archive()
    journal = await archive.begin()
    await journal.append(step(0), step(1), step(2))
    await damage(archive, "runs/r/journal.jsonl", old, new)
    before = dict(archive.shelf.objects)
    with pytest.raises(Corrupt, match=r"runs/r/journal\.jsonl: " + complaint):
        await archive.begin()
    with pytest.raises((Corrupt, Fenced)):  # a higher session is reason enough to stop
        await journal.append(step(3))
    assert archive.shelf.objects == before


async def test_a_damaged_segment_is_named() -> None:
    archive = await long_run()
    key = archive.keys("segments/")[-1]
    await damage(archive, key, b"s", b"S")
    with pytest.raises(Corrupt, match=re.escape(key)):
        await archive.history()
    await archive.backend.put(key, b"")
    with pytest.raises(Corrupt, match=rf"{re.escape(key)}: its 0 bytes are not the \d+ that were sealed"):
        await archive.history()


async def test_a_missing_segment_is_corrupt_only_if_the_journal_stays_the_same() -> None:
    archive = await long_run()
    ref = (await archive.history()).refs[0]
    key = layout.segment_key("r", ref.level, ref.first, ref.attempt)
    await archive.backend.delete(key)
    with pytest.raises(Corrupt, match=rf"runs/r/journal\.jsonl: it refers to {re.escape(key)}"):
        await archive.history()


async def test_a_reader_overtaken_by_a_clean_up_reads_again() -> None:
    class Moving(MemoryStore):
        """The first read of the journal gives an older one, whose segments are gone."""

        old: bytes | None = None

        async def get(self, key: str) -> Object:
            if self.old is not None and key.endswith("journal.jsonl"):
                body, self.old = self.old, None
                return Object(key, body, 0, Version("older"))
            return await super().get(key)

    backend = Moving()
    archive = Archive(backend)
    journal = await archive.begin(policy=TINY)
    for number in range(4):
        await journal.append(step(number))
    old = (await backend.get("runs/r/journal.jsonl")).body
    for number in range(4, 9):
        await journal.append(step(number))
    current = {layout.segment_key("r", ref.level, ref.first, ref.attempt) for ref in journal.history.refs}
    for key in [key async for key in backend.keys(layout.segment_folder("r"))]:
        if key not in current:
            await backend.delete(key)
    backend.old = old
    assert (await archive.history()).lines == journal.history.lines


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n"])
async def test_an_empty_journal_is_corrupt(body: bytes) -> None:
    archive = Archive()
    await archive.backend.put("runs/r/journal.jsonl", body)
    with pytest.raises(Corrupt, match=r"runs/r/journal\.jsonl: "):
        await archive.history()


@pytest.mark.parametrize("size", [0, 40_000, 3 * 1024 * 1024])
async def test_a_payload_comes_back(size: int) -> None:
    archive = Archive()
    body = b"\x00\xff" * (size // 2)
    reference = await put_payload(archive.store, archive.ambient, "r", body)
    assert archive.spent() == {"put": 1}
    assert reference.keys() == {"key", "sha256", "bytes"}
    assert await get_payload(archive.store, {**reference, "encoding": "bytes"}) == body
    assert archive.spent() == {"get": 1}


async def test_damage_is_noticed() -> None:
    archive = Archive()
    reference = await put_payload(archive.store, archive.ambient, "r", b"value")
    await archive.backend.put(reference["key"], b"eulav")
    with pytest.raises(Corrupt, match=reference["key"]):
        await get_payload(archive.store, reference)
    await archive.backend.delete(reference["key"])
    with pytest.raises(Corrupt, match="which does not exist"):
        await get_payload(archive.store, reference)
    with pytest.raises(Corrupt, match="without a key"):
        await get_payload(archive.store, {})
