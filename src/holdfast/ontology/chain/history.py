"""Commits for people: lists of them, tags, and the moments of a query.

    latest              the state at the head
    as_of(c)            the state after commit c, at a timestamp, or at a tag
    with_history()      every row that was ever written, retractions among them
    history_since(c)    the same of the commits after c
    between(a, b)       the same of the commits from a to b, both included

``as_of`` bounds history too. A query reads one head, and nothing after it. A moment beyond the head means the head;
with ``strict`` it is ``NotFound``. For a type that was dropped, a window shows the life that the type has at the
window's last commit, if any, and never one that was purged.

Tags are names for commits, in one register. A tag records its commit's manifest, so that it never means another commit.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Literal

from holdfast.base import codec
from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Conflict, Corrupt, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.register import Plain, Register
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.types.refs import Place

# --- commits ---


async def commits(store: Store, *, limit: int | None = None, before: int | None = None) -> AsyncIterator[Manifest]:
    """The newest first; with ``before``, those with smaller numbers."""
    chain = Chain(store)
    place = (await read_head(store)).place
    if before is not None and place is not None and before <= place.commit_id:
        place = await chain.at(place, before - 1)
    count = 0
    while place is not None and (limit is None or count < limit):
        manifest = await chain.manifest(place)
        yield manifest
        place, count = manifest.parent, count + 1


async def find_commit(store: Store, commit_id: int) -> Manifest:
    chain = Chain(store)
    place = await place_of(store, chain, commit_id)
    if place is None:
        raise Invalid("commit 0 is the empty store: it has no manifest", remedy="name a commit from 1 on")
    return await chain.manifest(place)


async def place_of(store: Store, chain: Chain, commit_id: int) -> Place | None:
    """The manifest of a commit; None for 0, the empty store."""
    head = await read_head(store)
    if not 0 <= commit_id <= head.commit_id:
        raise NotFound(f"there is no commit {commit_id}; the head is commit {head.commit_id}")
    return await chain.at(head.place, commit_id) if commit_id else None


# --- tags ---

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
    """No name of a tag looks like a time or a number."""
    return _NAME.fullmatch(text) is not None


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
        """Name a commit, or the head. ``Conflict`` if the name is used for another commit, unless ``move`` is set."""
        if not is_tag_name(name):
            raise Invalid(f"{name!r} cannot be a tag", remedy="use a letter, then letters, digits, '.', '_' or '-'")
        number = commit_id if commit_id is not None else (await read_head(self._store)).commit_id
        manifest = await find_commit(self._store, number)
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


async def read_tags(store: Store) -> list[Tag]:
    """All tags, by name."""
    found = await store.find(layout.TAGS)
    if found is None:
        return []
    document = codec.decode(found.body, key=layout.TAGS)
    tags = Plain(FORMAT).read(document, layout.TAGS) or {}
    try:
        fields = [field for field in Tag.__slots__ if field != "name"]
        return [Tag(name, **{field: tags[name][field] for field in fields}) for name in sorted(tags)]
    except codec.MALFORMED as error:
        raise Corrupt(f"{layout.TAGS}: not a list of tags ({error!r})") from error


async def find_tag(chain: Chain, head: Place | None, name: str) -> Tag:
    """``NotFound`` for no such tag; ``Corrupt`` for one of a commit that is not on the chain any more."""
    tags = {tag.name: tag for tag in await read_tags(chain.store)}
    if (tag := tags.get(name)) is None:
        close = get_close_matches(name, tags, n=1)
        remedy = f"did you mean {close[0]}?" if close else "holdfast onto tag list"
        raise NotFound(f"there is no tag {name!r}", remedy=remedy)
    if not await chain.contains(head, Place(tag.commit_id, tag.manifest_path)):
        raise Corrupt(f"tag {name!r}: {tag.manifest_path} is not on the chain", remedy="the store was created again")
    return tag


# --- the commits that a query is about ---

Moment = int | datetime | str
"""A commit's number, a time, a time as ISO 8601 text, or the name of a tag."""


@dataclass(frozen=True, slots=True)
class When:
    """The moments that a query names. ``first`` and ``last`` are included, ``after`` is not."""

    mode: Literal["state", "history"] = "state"
    first: Moment | None = None
    last: Moment | None = None
    after: Moment | None = None
    strict: bool = False

    def until(self, moment: Moment, *, strict: bool) -> "When":
        """The same commits, up to a moment."""
        if self.first is not None:
            raise Invalid("between() says itself where it ends", remedy="leave out as_of()")
        return replace(self, last=moment, strict=strict)

    def as_history(self, after: Moment | None = None) -> "When":
        """The history of the same commits."""
        last = self.last if self.first is None else None
        return When("history", after=after, last=last, strict=self.strict)

    def spanning(self, first: Moment, last: Moment) -> "When":
        """The history between two moments."""
        if self.last is not None and self.first is None:
            raise Invalid("between() says itself where it ends", remedy="leave out as_of()")
        return When("history", first=first, last=last)


LATEST = When()


@dataclass(frozen=True, slots=True)
class Window:
    """The commits after ``lower``, up to ``upper``. With ``history`` their rows are wanted, otherwise the state after
    them."""

    lower: int
    upper: int
    history: bool

    def touches(self, first: int, last: int) -> bool:
        return last > self.lower and first <= self.upper


async def window(when: When, chain: Chain, ledger: Ledger) -> Window:
    """The commits of ``when`` at this head."""
    head = ledger.commit_id
    upper = head if when.last is None else await commit_at(when.last, chain, ledger, strict=when.strict)
    lower = 0
    if when.after is not None:
        lower = await commit_at(when.after, chain, ledger, strict=when.strict)
    elif when.first is not None:
        lower = max(await _first_commit(when.first, chain, ledger) - 1, 0)
        if when.last is not None:
            _check_order(when.first, when.last)
            if upper < lower < head:
                raise Invalid(f"{when.first} is after {when.last}", remedy="name the older one first")
    return Window(lower, upper, when.mode == "history")


async def commit_at(moment: Moment, chain: Chain, ledger: Ledger, *, strict: bool = False) -> int:
    """The last commit up to a moment."""
    head = ledger.commit_id
    if isinstance(moment, int) and not isinstance(moment, bool):
        if moment < 0:
            raise Invalid(f"there is no commit {moment}", remedy="commits count from 1; 0 is the empty store")
        if moment > head and strict:
            message = f"there is no commit {moment} yet; the head is commit {head}"
            raise NotFound(message, remedy="leave out strict to take the head")
        return min(moment, head)
    if (tagged := await _tagged_commit(moment, chain, ledger)) is not None:
        return min(tagged, head)
    wanted = nanoseconds(moment)
    if wanted >= ledger.created_ns and strict:
        raise NotFound(f"{moment} is after the head, commit {head}", remedy="leave out strict to take the head")
    return await _last_before(wanted, chain, ledger)


async def _first_commit(moment: Moment, chain: Chain, ledger: Ledger) -> int:
    """The first commit that is not before a moment."""
    if isinstance(moment, int) and not isinstance(moment, bool):
        await commit_at(moment, chain, ledger)
        return moment
    if (tagged := await _tagged_commit(moment, chain, ledger)) is not None:
        return tagged
    return await _last_before(nanoseconds(moment) - 1, chain, ledger) + 1


async def _tagged_commit(moment: datetime | str | bool, chain: Chain, ledger: Ledger) -> int | None:
    """The commit that a tag names; None for a moment that cannot be a tag."""
    if not isinstance(moment, str) or not is_tag_name(moment):
        return None
    try:
        return (await find_tag(chain, ledger.place, moment)).commit_id
    except NotFound as error:
        remedy = error.remedy if "did you mean" in str(error.remedy) else "write 42, or 2026-05-01T12:00:00Z, or a tag"
        raise Invalid(f"{moment!r} is neither a commit nor a time nor a tag", remedy=remedy) from error


async def _last_before(wanted_ns: int, chain: Chain, ledger: Ledger) -> int:
    """The last commit up to a time, by bisection: times never run backwards along the chain."""
    if ledger.place is None or wanted_ns >= ledger.created_ns:
        return ledger.commit_id
    low, high = 0, ledger.commit_id  # low is not after the time, high is
    while high - low > 1:
        middle = (low + high) // 2
        created = await _created_ns(chain, await chain.at(ledger.place, middle))
        low, high = (middle, high) if created <= wanted_ns else (low, middle)
    return low


async def _created_ns(chain: Chain, place: Place | None) -> int:
    """When a commit was made. A commit without a time has that of the latest one before it that has one."""
    while place is not None:
        manifest = await chain.manifest(place)
        if manifest.created_at:
            return manifest.created_ns
        place = manifest.parent
    return 0


def nanoseconds(moment: datetime | str | bool) -> int:
    if isinstance(moment, str):
        try:
            return parse_iso(moment)
        except ValueError as error:
            raise Invalid(
                f"{moment!r} is neither a commit nor a time nor a tag", remedy="write 42, or 2026-05-01T12:00:00Z"
            ) from error
    if not isinstance(moment, datetime):
        raise Invalid(f"{moment!r} is neither a commit nor a time", remedy="give a number or a datetime")
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return parse_iso(aware.isoformat())


def _check_order(first: Moment, last: Moment) -> None:
    if isinstance(first, int) and isinstance(last, int) and first > last:
        raise Invalid(f"commit {first} is after commit {last}", remedy="name the older one first")
