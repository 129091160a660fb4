"""Piles in the store: sheets are written before the digest refers to them, and deleted after it has ceased to.

Nothing here changes the digest: ``spill``, ``fetch``, ``take`` and ``merge`` plan a ``Move``, which counts when the
digest has it. A sheet that is referred to and not there is told as ``LostSheet``: its section begins anew, which finds
everything.
Sheets that nobody refers to, left by workers that died, are removed by cleanup.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from typing import Any

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.pile import FAN, LATER, Item, Move, Pile, Row, Sheet, in_rank, rank, read_item
from holdfast.bus.turns import Columns
from holdfast.objects.store import CREATE, Store

FORMAT = "holdfast.bus.sheet"
VERSION = 1
ROWS = 4_096
"""Per sheet."""
CACHED = 4 * FAN
"""Sheets kept in memory."""


class LostSheet(Exception):  # never leaves the feed
    """A sheet that is referred to cannot be read."""

    def __init__(self, sheet: str, message: str) -> None:
        super().__init__(message)
        self.sheet = sheet


class Piles:
    """The sheets of one namespace, as one worker reads and writes them."""

    def __init__(self, store: Store, namespace: str, ambient: Ambient) -> None:
        self._store = store
        self._namespace = namespace
        self._ambient = ambient
        self._sheets: OrderedDict[str, list[Row]] = OrderedDict()

    async def rows(self, sheet: str) -> list[Row]:
        return self._keep(sheet, self._sheets.get(sheet) or await self._read(sheet))

    def _keep(self, sheet: str, rows: list[Row]) -> list[Row]:
        self._sheets[sheet] = rows
        self._sheets.move_to_end(sheet)
        while len(self._sheets) > CACHED:
            self._sheets.popitem(last=False)
        return rows

    async def spill(self, rows: Sequence[Row], kind: str) -> Move:
        """Write rows as a pile of its own."""
        ranked = in_rank(rows, kind)
        cuts = [ranked[at : at + ROWS] for at in range(0, len(ranked), ROWS)]
        sheets = tuple([await self._write(cut, kind) for cut in cuts])
        pile = Pile(kind, 0, 0, sheets[0].head, sheets)
        return Move(after=(pile,), taken=[name for name, _ in rows])

    async def fetch(self, piles: Iterable[Pile], kind: str, *, count: int, due_ns: int) -> Move:
        """The best rows of all piles of the kind: at most ``count``, and of the later ones those that are due."""
        left: dict[Pile, Pile] = {pile: pile for pile in piles if pile.kind == kind}
        touched: dict[Pile, Pile | None] = {}
        rows: list[Row] = []
        while left and len(rows) < count:
            origin = min(left, key=lambda each: left[each].head)
            pile = left.pop(origin)
            if kind == LATER and pile.head[0] > due_ns:
                break
            fence = min((each.head for each in left.values()), default=None)
            sheet, at = await self.rows(pile.sheets[0].id), pile.start
            while at < len(sheet) and len(rows) < count:
                stands = rank(sheet[at], kind)
                if (fence is not None and stands > fence) or (kind == LATER and stands[0] > due_ns):
                    break
                rows.append(sheet[at])
                at += 1
            rest = touched[origin] = _rest(pile, sheet, at)
            if rest is not None:
                left[origin] = rest
        after = tuple(pile for pile in touched.values() if pile is not None)
        return Move(before=tuple(touched), after=after, fetched=rows)

    async def take(self, piles: Iterable[Pile], rows: Mapping[str, Sequence[int]]) -> Move:
        """Certain rows of certain sheets."""
        touched = [pile for pile in piles if any(sheet.id in rows for sheet in pile.sheets)]
        after: list[Pile] = []
        fetched: list[Row] = []
        for pile in touched:
            left: list[Sheet] = []
            for sheet in pile.sheets:
                taken = sheet.taken
                for place in rows.get(sheet.id, ()):
                    fetched.append((await self.rows(sheet.id))[place])
                    taken |= 1 << place
                left.append(sheet._replace(taken=taken))
            if sheets := tuple(sheet for sheet in left if sheet.left):
                after.append(replace(pile, sheets=sheets))
        return Move(before=tuple(touched), after=tuple(after), fetched=fetched)

    async def columns(self, sheets: Iterable[Sheet], known: Mapping[str, Columns]) -> dict[str, Columns]:
        """Of all these sheets; of those that are known nothing is read."""

        async def look(sheet: Sheet) -> Columns:
            if sheet.id in known:
                return known[sheet.id]
            rows = self._sheets.get(sheet.id) or await self._read(sheet.id)
            if len(rows) != sheet.rows:
                raise LostSheet(sheet.id, f"{layout.sheet_key(self._namespace, sheet.id)}: {len(rows)} rows")
            return Columns.of(rows)

        wanted = list(sheets)
        return {
            sheet.id: found for sheet, found in zip(wanted, await map_bounded(wanted, look, limit=FAN), strict=True)
        }

    async def merge(self, piles: Iterable[Pile]) -> Move | None:
        """Write a level that has become too many as one pile of the next; None if none has."""
        levels: dict[tuple[str, int], list[Pile]] = {}
        for pile in piles:
            levels.setdefault((pile.kind, pile.level), []).append(pile)
        full = [(key, each) for key, each in levels.items() if len(each) >= FAN]
        if not full:
            return None
        (kind, level), merged = min(full, key=lambda one: one[0][1])
        sheets: list[Sheet] = []
        rows: list[Row] = []
        async for row in self._merged(merged, kind):
            rows.append(row)
            if len(rows) == ROWS:
                sheets.append(await self._write(rows, kind))
                rows = []
        if rows:
            sheets.append(await self._write(rows, kind))
        pile = Pile(kind, level + 1, 0, sheets[0].head, tuple(sheets))
        return Move(before=tuple(merged), after=(pile,))

    async def everything(self, at_hand: Mapping[str, Item], piles: Iterable[Pile]) -> AsyncIterator[Row]:
        """What is at hand, and what lies in piles; not what lay in a sheet that is used up by now."""
        for row in at_hand.items():
            yield row
        with suppress(LostSheet):
            for pile in piles:
                async for row in self._all(pile):
                    yield row

    async def drop(self, sheets: Iterable[str]) -> None:
        """Delete sheets that no digest refers to."""
        gone = list(sheets)
        for sheet in gone:
            self._sheets.pop(sheet, None)
        if gone:
            await self._store.delete_many([layout.sheet_key(self._namespace, sheet) for sheet in gone])

    async def _merged(self, piles: Sequence[Pile], kind: str) -> AsyncIterator[Row]:
        """All rows in order. Of each pile one sheet is in memory."""
        feeds = [self._all(pile) for pile in piles]
        heads: list[tuple[Any, int, Row]] = []
        for number, feed in enumerate(feeds):
            async for row in feed:
                heappush(heads, (rank(row, kind), number, row))
                break
        while heads:
            _, number, row = heads[0]
            yield row
            follower = await anext(feeds[number], None)
            if follower is None:
                heappop(heads)
            else:
                heapreplace(heads, (rank(follower, kind), number, follower))

    async def _all(self, pile: Pile) -> AsyncGenerator[Row]:
        for number, sheet in enumerate(pile.sheets):
            start = pile.start if number == 0 else 0
            for place, row in enumerate(await self._read(sheet.id)):
                if place >= start and not sheet.taken >> place & 1:
                    yield row

    async def names(self, piles: Iterable[Pile], buckets: Set[str]) -> dict[str, list[str]]:
        """The names of all piles, of these ten minutes alone."""
        found: dict[str, list[str]] = {bucket: [] for bucket in buckets}
        for pile in piles:
            async for name, _ in self._all(pile):
                if layout.bucket(name) in found:
                    found[layout.bucket(name)].append(name)
        return found

    async def _write(self, rows: Sequence[Row], kind: str) -> Sheet:
        sheet = self._ambient.ids.unique()
        body = {"format": FORMAT, "version": VERSION, "rows": [[name, *item] for name, item in rows]}
        await self._store.put(layout.sheet_key(self._namespace, sheet), codec.encode(body), CREATE)
        self._keep(sheet, list(rows))
        return Sheet(sheet, len(rows), rank(rows[0], kind))

    async def _read(self, sheet: str) -> list[Row]:
        key = layout.sheet_key(self._namespace, sheet)
        found = await self._store.find(key)
        if found is None:
            raise LostSheet(sheet, f"{key}: it is referred to, and is not there")
        try:
            document = codec.decode(found.body, key=key)
            codec.expect(document, format_name=FORMAT, newest=VERSION, key=key)
            return [(str(name), read_item(item)) for name, *item in document["rows"]]
        except (Corrupt, *codec.MALFORMED) as error:
            raise LostSheet(sheet, f"{key}: not a sheet ({error!r})") from error


def _rest(pile: Pile, sheet: Sequence[Row], at: int) -> Pile | None:
    """What is left of the pile after the rows of its first sheet before ``at``."""
    if at < len(sheet):
        return replace(pile, start=at, head=rank(sheet[at], pile.kind))
    if len(pile.sheets) == 1:
        return None
    return replace(pile, start=0, head=pile.sheets[1].head, sheets=pile.sheets[1:])
