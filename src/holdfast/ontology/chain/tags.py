"""Tags: names for commits, in one register. A tag remembers its manifest, so that it never means another commit."""

import re
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.errors import Conflict, Corrupt, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.register import Plain, Register
from holdfast.objects.store import Store
from holdfast.ontology.chain import history
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import read_head
from holdfast.ontology.types.refs import Place

FORMAT = "holdfast.ontology.tags"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Tag:
    name: str
    commit_id: int
    manifest_path: str
    created_at: str
    created_by: str
    note: str = ""


def is_tag_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


async def read_tags(store: Store) -> list[Tag]:
    found = await store.find(layout.TAGS)
    if found is None:
        return []
    document = codec.decode(found.body, key=layout.TAGS)
    named = Plain(FORMAT).read(document, layout.TAGS) or {}
    return sorted((_tag(name, each) for name, each in named.items()), key=_name)


async def find_tag(chain: Chain, head: Place | None, name: str) -> Tag:
    """``NotFound`` for no such tag; ``Corrupt`` for one of a commit that is not on the chain any more."""
    known = await read_tags(chain.store)
    tag = next((each for each in known if each.name == name), None)
    if tag is None:
        close = get_close_matches(name, [each.name for each in known], n=1)
        remedy = f"did you mean {close[0]}?" if close else "holdfast onto tag list"
        raise NotFound(f"there is no tag {name!r}", remedy=remedy)
    if not await chain.contains(head, Place(tag.commit_id, tag.manifest_path)):
        raise Corrupt(f"tag {name!r}: {tag.manifest_path} is not on the chain", remedy="the store was made anew")
    return tag


class Tags:
    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient
        self._register: Register[Any] = Register(store, layout.TAGS, Plain(FORMAT), ambient)

    async def all(self) -> list[Tag]:
        return await read_tags(self._store)

    async def find(self, name: str) -> Tag:
        """``NotFound`` for no such tag; ``Corrupt`` for one of a commit that is not on the chain any more."""
        return await find_tag(Chain(self._store), (await read_head(self._store)).place, name)

    async def set(self, name: str, commit_id: int | None, *, by: str, note: str = "", move: bool = False) -> Tag:
        """Name a commit; without one, the head. A name that is taken is a ``Conflict``, unless it is to ``move``."""
        if not is_tag_name(name):
            raise Invalid(f"{name!r} cannot be a tag", remedy="use a letter, then letters, digits, '.', '_' or '-'")
        number = commit_id if commit_id is not None else (await read_head(self._store)).commit_id
        manifest = await history.find_commit(self._store, number)
        tag = Tag(name, number, manifest.path, iso(self._ambient.clock.wall_ns()), by, note)

        def change(tags: Any) -> Any:
            known = (tags or {}).get(name)
            if known is not None and not move and known["manifest_path"] != tag.manifest_path:
                raise Conflict(
                    f"{name!r} names commit {known['commit_id']} already",
                    remedy="move it with --move (move=True), or use another name",
                )
            return {**(tags or {}), name: {key: value for key, value in asdict(tag).items() if key != "name"}}

        await self._register.edit(self._ambient.ids.unique(), change)
        return tag

    async def delete(self, name: str) -> None:
        def change(tags: Any) -> Any:
            if name not in (tags or {}):
                raise NotFound(f"there is no tag {name!r}", remedy="holdfast onto tag list")
            return {key: value for key, value in tags.items() if key != name}

        await self._register.edit(self._ambient.ids.unique(), change)


def _tag(name: str, document: Any) -> Tag:
    try:
        return Tag(name, **{field: document[field] for field in Tag.__slots__ if field != "name"})
    except codec.MALFORMED as error:
        raise Corrupt(f"{layout.TAGS}: tag {name!r} is {document!r}") from error


def _name(tag: Tag) -> str:
    return tag.name
