"""Which entries of an index are merged next: a counter whose digits are snapshots. Pure.

The weight of an entry is the number of commit files that it stands for, its tier the power of ``FAN`` below. Where
``FAN`` neighbours are of one tier they become one of the next; an older neighbour of a lower tier is drawn in. So there
are less than ``FAN`` entries of each tier, O(log n) in all, and a row is written again at most once per tier.

A file of half the size limit or more is closed: it is left alone, and so are the neighbours on its other side.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.ontology.format.index import Entry
from holdfast.ontology.types.refs import UNTOUCHED, FileRef, TypeHead, TypeId, fold

FAN = 4
LIMIT = 64 << 20
"""Bytes that are merged into one snapshot."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An entry, with the type's head before and after it."""

    entry: Entry
    before: TypeHead
    after: TypeHead
    size: int | None = None
    """The size of its file; None while unknown."""

    @property
    def weight(self) -> int:
        return self.after.files - self.before.files


def pieces_of(entries: Iterable[Entry], type_id: TypeId) -> list[Piece]:
    """The pieces of a proved list of entries."""
    found: list[Piece] = []
    head = UNTOUCHED
    for entry in entries:
        after = entry.head
        if after is None:
            after = fold(head, [FileRef(entry.last, type_id, entry.path)])
        found.append(Piece(entry, head, after, entry.stats.size if entry.stats is not None else None))
        head = after
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    pieces: tuple[Piece, ...]
    tier: int
    closed: bool

    def joined(self, later: "_Group", fan: int) -> "_Group":
        pieces = (*self.pieces, *later.pieces)
        return _Group(pieces, _tier(sum(piece.weight for piece in pieces), fan), closed=False)


def plan(
    pieces: Sequence[Piece], *, below: int, fan: int = FAN, limit: int = LIMIT, whole: bool = False
) -> list[tuple[Piece, ...]]:
    """The groups of neighbours to be merged, each into one snapshot; only of entries that end before ``below``.

    ``whole`` joins all that are not closed, whatever their tiers: as few files as there can be, for more to write.
    """
    groups: list[_Group] = []
    for piece in pieces:
        if piece.entry.last < below:
            closed = piece.size is not None and 2 * piece.size >= limit
            groups.append(_Group((piece,), _tier(piece.weight, fan), closed))
            if not whole:
                _settle(groups, fan)
            elif len(groups) > 1 and not (closed or groups[-2].closed):
                groups[-2:] = [groups[-2].joined(groups[-1], fan)]
    return [part for group in _together(groups) for part in _parts(group, limit) if len(part) > 1]


def _together(groups: Iterable[_Group]) -> list[tuple[Piece, ...]]:
    """Those with something to merge; neighbours as one, because all of it is written anyway."""
    found: list[tuple[Piece, ...]] = []
    follows = False
    for group in groups:
        merging = len(group.pieces) > 1
        if merging and follows:
            found[-1] = (*found[-1], *group.pieces)
        elif merging:
            found.append(group.pieces)
        follows = merging
    return found


def _settle(groups: list[_Group], fan: int) -> None:
    """Join the latest groups until they are digits of a counter again."""
    while not groups[-1].closed:
        latest = groups[-1]
        if len(groups) > 1 and not groups[-2].closed and groups[-2].tier < latest.tier:
            groups[-2:] = [groups[-2].joined(latest, fan)]
            continue
        same = groups[-fan:]
        if len(same) < fan or any(group.closed or group.tier != latest.tier for group in same):
            return
        joined = same[0]
        for group in same[1:]:
            joined = joined.joined(group, fan)
        # Files of one weight may be too few for the next tier only if they were drawn together before; they stay.
        groups[-fan:] = [replace(joined, tier=max(joined.tier, latest.tier + 1))]


def _parts(group: Sequence[Piece], limit: int) -> list[tuple[Piece, ...]]:
    """A group cut where it would grow beyond the limit."""
    parts: list[list[Piece]] = [[]]
    filled = 0
    for piece in group:
        size = piece.size or 0
        if parts[-1] and filled + size > limit:
            parts.append([])
            filled = 0
        parts[-1].append(piece)
        filled += size
    return [tuple(part) for part in parts]


def _tier(weight: int, fan: int) -> int:
    tier = 0
    while weight >= fan:
        weight //= fan
        tier += 1
    return tier
