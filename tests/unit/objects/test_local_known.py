"""A store that replaces its own last write need not read it; anything else that stands there is still noticed."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.objects.local import LocalStore, known, writing
from holdfast.objects.local.files import OpenFile, open_file
from holdfast.objects.local.known import Known
from holdfast.objects.store import CREATE, IfMatch, Lost, Version, Written, content_version


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The paths that were read to compare them."""
    noted: list[bytes] = []

    def open_noted(path: bytes) -> OpenFile | None:
        noted.append(path)
        return open_file(path)

    monkeypatch.setattr(writing, "open_file", open_noted)
    return noted


async def write(store: LocalStore, key: str, *bodies: bytes) -> Version:
    """Create an object, then replace it again and again."""
    first, *rest = bodies
    outcome = await store.put(key, first, CREATE)
    for body in rest:
        assert isinstance(outcome, Written)
        outcome = await store.put(key, body, IfMatch(outcome.version))
    assert isinstance(outcome, Written)
    return outcome.version


async def test_only_the_first_comparison_reads(store: LocalStore, reads: list[bytes]) -> None:
    version = await write(store, "a/b", b"0", b"1", b"2", b"3")
    assert len(reads) == 1
    assert version == content_version(b"3")
    assert (await store.get("a/b")).body == b"3"


async def test_a_version_that_is_over_loses(store: LocalStore) -> None:
    await write(store, "a", b"0", b"1")
    assert await store.put("a", b"2", IfMatch(content_version(b"0"))) == Lost()
    assert (await store.get("a")).body == b"1"
    assert isinstance(await store.put("a", b"2", IfMatch(content_version(b"1"))), Written)


@pytest.mark.parametrize("body", [b"x", b"longer"])
async def test_what_another_store_wrote_is_noticed(store: LocalStore, tmp_path: Path, body: bytes) -> None:
    version = await write(store, "a", b"0", b"1")
    other = await LocalStore(tmp_path).put("a", body, IfMatch(version))
    assert isinstance(other, Written)
    assert await store.put("a", b"2", IfMatch(version)) == Lost()
    assert isinstance(await store.put("a", b"2", IfMatch(other.version)), Written)


async def test_what_was_deleted_or_edited_is_noticed(store: LocalStore, tmp_path: Path) -> None:
    version = await write(store, "a", b"0", b"1")
    await store.delete("a")
    assert await store.put("a", b"2", IfMatch(version)) == Lost()
    version = await write(store, "b", b"0", b"1")
    (tmp_path / "b").write_bytes(b"edited in place")
    assert await store.put("b", b"2", IfMatch(version)) == Lost()
    version = await write(store, "c", b"0", b"1")
    status = (tmp_path / "c").stat()
    (tmp_path / "c").write_bytes(b"e")
    os.utime(tmp_path / "c", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert await store.put("c", b"2", IfMatch(version)) == Lost()


async def test_an_object_that_has_moved_into_its_folder_is_read(store: LocalStore, reads: list[bytes]) -> None:
    version = await write(store, "a", b"0", b"1")
    await store.put("a/b", b"")
    reads.clear()
    assert isinstance(await store.put("a", b"2", IfMatch(version)), Written)
    assert [Path(os.fsdecode(path)).name for path in reads] == ["%self"]


def open_files() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(link.readlink()))
    return found


async def test_few_and_small_files_are_kept_open_and_none_after_the_end(store: LocalStore, tmp_path: Path) -> None:
    for number in range(known.FILES + 5):
        await write(store, f"f/{number:03}", b"0", b"1")
    await write(store, "large", b"0", b"x" * (known.LARGEST_BYTES + 1))
    ours = sorted(path for path in open_files() if path.startswith(str(tmp_path)))
    assert ours == [str(tmp_path / f"f/{number:03}") for number in range(5, known.FILES + 5)]
    await store.close()
    assert not [path for path in open_files() if path.startswith(str(tmp_path))]


def test_a_number_that_went_to_another_file_is_not_the_same(tmp_path: Path) -> None:
    """An open file keeps its number: so nobody else can be taken for it."""
    files, path = Known(), tmp_path / "a"
    path.write_bytes(b"1")
    opened = os.open(path, os.O_RDONLY)
    files.keep(b"a", opened, os.fstat(opened), Version("one"))
    numbers = set()
    for _ in range(50):
        path.unlink()
        path.write_bytes(b"2")
        numbers.add(path.stat().st_ino)
    assert os.fstat(opened).st_ino not in numbers
    assert files.version(b"a", path.stat()) is None
