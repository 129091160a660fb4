"""Which moments a query is about. Pure, but for finding the commit of a timestamp or a tag.

    latest              the state at the head
    as_of(c)            the state after commit c, at a timestamp, or at a tag
    with_history()      every row that was ever written, retractions among them
    history_since(c)    the same of the commits after c
    between(a, b)       the same of the commits from a to b, both included

``as_of`` bounds history too.

One head is pinned for each query, and nothing after it is seen, whatever commits or indexes appear meanwhile. A moment
beyond the head means the head; with ``strict`` it is ``NotFound``. A type that was dropped has had a life; a window
shows the life that the type has at its last commit, if any, and never one that was purged.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from holdfast.base.clock import parse_iso
from holdfast.base.errors import Invalid, NotFound
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.tags import find_tag, is_tag_name
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.types.refs import Place

Moment = int | datetime | str
"""A commit's number, a time, a time as ISO 8601 text, or the name of a tag."""


@dataclass(frozen=True, slots=True)
class When:
    """What the user asked for; both bounds are included."""

    mode: Literal["state", "history"] = "state"
    first: Moment | None = None
    last: Moment | None = None
    after: Moment | None = None
    strict: bool = False

    def until(self, moment: Moment, *, strict: bool) -> "When":
        """The same, and nothing after a moment."""
        if self.first is not None:
            raise Invalid("between() says itself where it ends", remedy="leave out as_of()")
        return replace(self, last=moment, strict=strict)

    def as_history(self, after: Moment | None = None) -> "When":
        """History, up to the moment that was named before."""
        last = self.last if self.first is None else None
        return When("history", after=after, last=last, strict=self.strict)

    def spanning(self, first: Moment, last: Moment) -> "When":
        if self.last is not None and self.first is None:
            raise Invalid("between() says itself where it ends", remedy="leave out as_of()")
        return When("history", first=first, last=last)


LATEST = When()


@dataclass(frozen=True, slots=True)
class Window:
    """The commits after ``lower``, up to ``upper``; and whether their rows are wanted, or the state that they leave."""

    lower: int
    upper: int
    history: bool

    def touches(self, first: int, last: int) -> bool:
        return last > self.lower and first <= self.upper


async def window(when: When, chain: Chain, ledger: Ledger) -> Window:
    """The commits that ``when`` means at this head."""
    head = ledger.commit_id
    upper = head if when.last is None else await commit_at(when.last, chain, ledger, strict=when.strict)
    lower = 0
    if when.after is not None:
        lower = await commit_at(when.after, chain, ledger, strict=when.strict)
    elif when.first is not None:
        lower = max(await _first(when.first, chain, ledger) - 1, 0)
        if when.last is not None:
            _check_order(when.first, when.last)
            if upper < lower < head:
                raise Invalid(f"{when.first} is after {when.last}", remedy="name the older one first")
    return Window(lower, upper, when.mode == "history")


async def commit_at(moment: Moment, chain: Chain, ledger: Ledger, *, strict: bool = False) -> int:
    """The commit that is meant; for a time, the last one up to it."""
    head = ledger.commit_id
    if isinstance(moment, int) and not isinstance(moment, bool):
        if moment < 0:
            raise Invalid(f"there is no commit {moment}", remedy="commits count from 1; 0 is the empty store")
        if moment > head and strict:
            raise NotFound(f"there is no commit {moment} yet; the head is commit {head}")
        return min(moment, head)
    if (tagged := await _tagged(moment, chain, ledger)) is not None:
        return min(tagged, head)
    wanted = nanoseconds(moment)
    if wanted >= ledger.created_ns and strict:
        raise NotFound(f"{moment} is after the head, commit {head}", remedy="leave out strict to take the head")
    return await _last_before(wanted, chain, ledger)


async def _first(moment: Moment, chain: Chain, ledger: Ledger) -> int:
    """The first commit that is meant; for a time, the first one not before it."""
    if isinstance(moment, int) and not isinstance(moment, bool):
        await commit_at(moment, chain, ledger)
        return moment
    if (tagged := await _tagged(moment, chain, ledger)) is not None:
        return tagged
    return await _last_before(nanoseconds(moment) - 1, chain, ledger) + 1


async def _tagged(moment: datetime | str | bool, chain: Chain, ledger: Ledger) -> int | None:
    """The commit that a tag names; None for a text that cannot be one. No tag looks like a time."""
    if not isinstance(moment, str) or not is_tag_name(moment):
        return None
    try:
        return (await find_tag(chain, ledger.place, moment)).commit_id
    except NotFound as error:
        remedy = error.remedy if "did you mean" in str(error.remedy) else "write 42, or 2026-05-01T12:00:00Z, or a tag"
        raise Invalid(f"{moment!r} is neither a commit nor a time nor a tag", remedy=remedy) from error


async def _last_before(wanted_ns: int, chain: Chain, ledger: Ledger) -> int:
    """Times never run backwards along the chain, so that halving finds it."""
    if ledger.place is None or wanted_ns >= ledger.created_ns:
        return ledger.commit_id
    low, high = 0, ledger.commit_id  # low is not after the time, high is
    while high - low > 1:
        middle = (low + high) // 2
        place = await chain.at(ledger.place, middle)
        created = await _created(chain, place)
        low, high = (middle, high) if created <= wanted_ns else (low, middle)
    return low


async def _created(chain: Chain, place: Place | None) -> int:
    """When a commit was made. One that does not say so was made with the latest before it that does."""
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
