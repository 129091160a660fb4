"""The local store: its names are one to one for every key, and every operation answers like the memory store."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.base.errors import Invalid
from holdfast.objects.local import LocalStore
from holdfast.objects.local.names import (
    CONTINUED,
    CONTROL,
    MOVING,
    NAME_BYTES,
    SELF,
    component_names,
    key_names,
    names_component,
)
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import CREATE, OVERWRITE, IfMatch, Mode, Page, Store, check_key, content_version
from tests.unit.objects.local.local_kit import contents, files, keys


def fits(key: str) -> bool:
    try:
        return bool(check_key(key))
    except Invalid:
        return False


# Few characters, so that keys meet: those that sort around "/", those that we escape, those that filesystems confuse.
confusing = st.text(st.sampled_from("aA0-.%!~éÉ\u0301"), min_size=1, max_size=4)
reserved = st.sampled_from(["%self", "%moving", ".%holdfast", "%25", "a%", "%2F"])
OURS = [CONTROL, SELF, MOVING, b"50%", b"%2F", b"a%2fb", b"\xff", b"a\nb", b"short%", b"x" * 254 + b"%"]
long = st.builds(lambda unit, count, end: unit * count + end, st.sampled_from("a%é"), st.integers(80, 260), confusing)
any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)

components = (confusing | reserved | long | any_text).filter(lambda text: "/" not in text and fits(text))
some_keys = st.lists(confusing | reserved | long, min_size=1, max_size=3).map("/".join).filter(fits)


@given(components)
@example("x" * 255)
@example("x" * 256)
@example("%" * 341)
def test_a_component_is_read_back_from_its_names(component: str) -> None:
    names = component_names(component)
    assert names_component(names) == component
    assert all(0 < len(name) <= NAME_BYTES and b"/" not in name and name not in (b".", b"..") for name in names)
    assert [name.endswith(CONTINUED) for name in names] == [True] * (len(names) - 1) + [False]


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("runs/a.json", (b"runs", b"a.json")),
        ("100%", (b"100%25",)),
        ("%self", (b"%25self",)),
        (".%holdfast/locks", (b".%25holdfast", b"locks")),
        ("Grüße", ("Grüße".encode(),)),
        ("a/" + "x" * 256 + "/b", (b"a", b"x" * 254 + b"%", b"xx", b"b")),
        ("é" * 128, ("é".encode() * 127 + b"%", "é".encode())),  # 127 letters fill 254 bytes; none is split
        ("%" * 100, (b"%25" * 84 + b"%", b"%25" * 16)),  # neither is an escape
    ],
)
def test_a_key_has_this_path_on_disk(key: str, names: tuple[bytes, ...]) -> None:
    assert key_names(key) == names


@given(some_keys, some_keys)
def test_two_keys_have_two_paths(one: str, other: str) -> None:
    assert (key_names(one) == key_names(other)) == (one == other)


@given(st.lists(st.binary(min_size=1, max_size=8) | st.sampled_from(OURS), min_size=1, max_size=2))
def test_names_belong_to_a_component_only_if_they_are_its_names(names: list[bytes]) -> None:
    component = names_component(tuple(names))
    assert component is None or component_names(component) == tuple(names)


# Puts and deletes by any client, over a few keys that are in each other's way.
bodies = st.sampled_from([b"", b"1", b"2"])
modes = st.sampled_from([OVERWRITE, CREATE, *(IfMatch(content_version(body)) for body in (b"", b"1", b"2"))])
steps = st.tuples(st.integers(0, 7), bodies, modes | st.none())


@given(st.lists(some_keys, min_size=1, max_size=8, unique=True), st.lists(steps, max_size=14), st.data())
async def test_it_answers_like_memory(
    pool: list[str], steps: list[tuple[int, bytes, Mode | None]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory, local = MemoryStore(), LocalStore(Path(folder))
        for number, body, mode in steps:
            key = pool[number % len(pool)]
            if mode is None:
                await memory.delete(key)
                await local.delete(key)
            else:
                assert await local.put(key, body, mode) == await memory.put(key, body, mode)
        assert await contents(local) == await contents(memory)
        assert await keys(local) == sorted(await keys(local))
        after = data.draw(st.none() | some_keys)
        prefix = data.draw(st.sampled_from(["", *(f"{key.partition('/')[0]}/" for key in pool)]))
        for delimiter in (False, True):
            assert await listed(local, prefix, after, delimiter) == await listed(memory, prefix, after, delimiter)
        await local.delete_many(pool)
        assert files(Path(folder)) == []


async def listed(store: Store, prefix: str, after: str | None, delimiter: bool) -> tuple[list[str], tuple[str, ...]]:
    pages: list[Page] = [page async for page in store.list(prefix, after=after, delimiter=delimiter)]
    (page,) = pages
    return [entry.key for entry in page.entries], page.folders
