"""What one worker knows of a namespace: the digest as it last read it, and over it what it has learnt since. Pure.

All that it learns gathers in one ``Change`` per handler, over which it sees its own view, until somebody writes them.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from holdfast.base.ids import Ambient
from holdfast.bus.digest import Change, Digest, Fold, Section, apply, hash_of, moved, next_cursor
from holdfast.bus.event import DEFAULT_PRIORITY, Envelope
from holdfast.bus.pile import LATER, Item, Move, best
from holdfast.bus.turns import NOTHING_PILED, Look, Turns

ANY = "*"
"""Stands for every type of event."""
OPEN_LIMIT = 2_048
"""So many due events per handler are enough to have at hand. The rest is read when these are done, if its order is
known without a look; else it is read, and piled up."""
NEGLECTED_NS = 7 * 86_400 * 1_000_000_000
"""A handler that no worker has had for so long is forgotten."""
_ASKED = 8_192
"""So many names are remembered to be ours or not."""


class LineUp(NamedTuple):
    """The first ones at hand of a handler with ordered delivery, with their lines, best first."""

    ranked: list[tuple[str, int]]
    look: Look | None


class Known:
    def __init__(self, handlers: Mapping[str, Iterable[str]], me: str, ordered: Set[str], ambient: Ambient) -> None:
        self._ambient = ambient
        self.handlers = {handler: tuple(sorted(set(types))) for handler, types in handlers.items()}
        self.digest = Digest()
        self._changes = {handler: Change() for handler in self.handlers}
        self._views: dict[str, Section] = {}
        self._orders: dict[str, list[str]] = {}
        self._ordered = ordered
        self._turns: dict[str, Turns] = {}
        """What lies in the piles of handlers with ordered delivery, as this worker last looked into them."""
        self._line_ups: dict[str, LineUp] = {}
        self._ranked = False
        """An event of another priority than the usual one was seen."""
        self._me = me
        self._mine: dict[str, bool] = {}
        """Whose events are, as far as this worker has asked; for the workers that the digest lists."""

    def view(self, handler: str) -> Section:
        """The handler's section as this worker knew it when it last polled or wrote."""
        found = self._views.get(handler)
        if found is None:
            found = self._views[handler] = apply(self._base(handler), self._changes[handler])
        return found

    def fresh_view(self, handler: str) -> Section:
        """As ``view``, with all that this worker has learnt since."""
        self._forget_view(handler)
        return self.view(handler)

    def due(self, handler: str, now_ns: int) -> Iterator[str]:
        """Open events that may be tried now, in the order in which they should be."""
        if handler in self._ordered:
            yield from self._in_turn(handler, now_ns)
            return
        change, section = self._changes[handler], self.view(handler)
        if handler not in self._orders:
            self._orders[handler] = section.in_order()
        fence = section.fence()
        for name in self._orders[handler]:
            if fence is not None and section.stands(name, section.open[name]) > fence:
                return  # something that lies in a pile comes first
            if name not in change.settled and change.due.get(name, section.open[name].due_ns) <= now_ns:
                yield name

    def _in_turn(self, handler: str, now_ns: int) -> Iterator[str]:
        """Of every line the first, if it may be tried now."""
        line_up = self._lined_up(handler)
        section, look, due = self.view(handler), line_up.look, self._changes[handler].due
        if look is None:
            return  # it is not known yet who is before whom
        for name, line in line_up.ranked:
            item = section.open[name]
            if look.fence is not None and section.stands(name, item) > look.fence:
                return
            if due.get(name, item.due_ns) <= now_ns and line not in look.behind:
                yield name

    def look(self, handler: str) -> Look | None:
        """How events in piles stand to the first ones at hand, in a section with ordered delivery; None if piles have
        changed since this worker looked into them."""
        return self._lined_up(handler).look

    def _lined_up(self, handler: str) -> "LineUp":
        found = self._line_ups.get(handler)
        if found is None:
            heads = self.heads(handler)
            section, turns = self.view(handler), self._turns.get(handler)
            ranked = sorted((-section.open[name].priority, name, line) for line, name in heads.items())
            look: Look | None = NOTHING_PILED
            if section.piles:
                current = turns is not None and turns.piles == section.piles
                look = turns.look(heads, self._ambient.clock.wall_ns()) if turns is not None and current else None
            found = self._line_ups[handler] = LineUp([(name, line) for _, name, line in ranked], look)
        return found

    def next_due_ns(self, handler: str) -> int | None:
        """When the next open event may be tried; None if there is none."""
        if handler in self._ordered:
            return self._next_turn_ns(handler)
        change, section = self._changes[handler], self.view(handler)
        times = (change.due.get(name, item.due_ns) for name, item in section.open.items() if name not in change.settled)
        later = best(section.piles, LATER)
        piled = [0] if section.fence() is not None else [later[0]] if later is not None else []
        return min([*times, *piled], default=None)

    def _next_turn_ns(self, handler: str) -> int | None:
        line_up = self._lined_up(handler)
        section, look, due = self.view(handler), line_up.look, self._changes[handler].due
        if look is None or look.fence is not None:
            return 0
        later = best(section.piles, LATER)
        first = (name for name, line in line_up.ranked if line not in look.behind)
        times = [due.get(name, section.open[name].due_ns) for name in first]
        return min([*times, *([later[0]] if later is not None else [])], default=None)

    def heads(self, handler: str) -> dict[int, str]:
        """Of every line the oldest event at hand that is not settled."""
        return self.fresh_view(handler).heads()

    def settle(self, handler: str, name: str) -> None:
        self._line_ups.pop(handler, None)
        self._changes[handler].settled.add(name)

    def defer(self, handler: str, name: str, due_ns: int) -> None:
        self._changes[handler].due[name] = due_ns

    def refold(self, handler: str, bucket: str, seen: Fold, right: Fold) -> None:
        self._changes[handler].refold[bucket] = (seen, right)

    def repile(self, handler: str, bucket: str, seen: Fold, right: Fold) -> None:
        self._changes[handler].repile[bucket] = (seen, right)

    @property
    def count(self) -> int:
        """Open events of all handlers, as of the last look."""
        return sum(self.view(handler).count for handler in self.handlers)

    @property
    def unwritten(self) -> int:
        """How much this worker knows that the digest does not."""
        sizes = (len(each.found) + len(each.settled) + len(each.due) for each in self._changes.values())
        return sum(sizes)

    def is_mine(self, name: str) -> bool:
        """Whether this worker is the first to look at the event."""
        known = self._mine.get(name)
        if known is None:
            known = self._mine[name] = self.digest.owner(name, self._me) == self._me
        return known

    def spread(self, names: list[str]) -> list[str]:
        """Others' events, in an order that is this worker's alone: helpers should not all begin with the same."""
        return sorted(names, key=lambda name: hash_of(f"{self._me}{name}"))

    def _note(self, digest: Digest) -> None:
        if digest.workers != self.digest.workers or len(self._mine) > _ASKED:
            self._mine.clear()
        self.digest = digest

    def sort(self, handler: str, names: Iterable[tuple[str, Envelope | None]], *, late: bool = False) -> None:
        """Names with their events into the handler's section: open, or of no interest. ``late`` ones are before the
        cursor."""
        found: dict[str, Item] = {}
        settled: set[str] = set()
        for name, envelope in names:
            if envelope is None or not self.takes(handler, envelope.type):
                settled.add(name)
            else:
                due_ns = envelope.available_ns or 0
                found[name] = Item(envelope.priority, envelope.type, due_ns, envelope.order_key)
                self._ranked = self._ranked or envelope.priority != DEFAULT_PRIORITY
        self._changes[handler].found.update(found)
        self._changes[handler].late.update(found if late else ())
        self._changes[handler].settled.update(settled)
        self._forget_view(handler)

    def takes(self, handler: str, type_name: str) -> bool:
        types = self.handlers[handler]
        return ANY in types or type_name in types

    def _merged(
        self,
        digest: Digest,
        changes: Mapping[str, Change],
        now_ns: int,
        moves: Mapping[str, Move],
        anew: Mapping[str, str],
    ) -> dict[str, Section]:
        sections = {
            name: section
            for name, section in digest.sections.items()
            if name in self.handlers or now_ns - section.seen_ns < NEGLECTED_NS
        }
        for handler, change in changes.items():
            section = self._section(digest, handler)
            if any(anew.get(handler) == sheet.id for pile in section.piles for sheet in pile.sheets):
                section = Section(section.types, ordered=section.ordered)
            # If somebody began the section anew, what we looked at before is not in it, and must be looked at again.
            known = change if section.cursor >= self._base(handler).cursor else replace(change, cursor="")
            section = replace(apply(section, known), seen_ns=max(section.seen_ns, now_ns))
            sections[handler] = moved(section, moves[handler]) if handler in moves else section
        return sections

    def _listed(self, workers: Iterable[str], leaving: bool) -> tuple[str, ...]:
        others = {each for each in workers if each != self._me}
        return tuple(sorted(others if leaving or not self._me else {*others, self._me}))

    def _base(self, handler: str) -> Section:
        return self._section(self.digest, handler)

    def _section(self, digest: Digest, handler: str) -> Section:
        """The handler's section; a new one where the handler is new, or takes other types or another order."""
        new = Section(self.handlers[handler], ordered=handler in self._ordered)
        found = digest.sections.get(handler)
        return found if found is not None and (found.types, found.ordered) == (new.types, new.ordered) else new

    def _advance(self, seen_to: str) -> None:
        now_ns = self._ambient.clock.wall_ns()
        for handler in self.handlers:
            section, change = self._base(handler), self._changes[handler]
            cursor = next_cursor(section, change, seen_to, now_ns)
            if cursor > max(section.cursor, change.cursor):
                change.cursor = cursor
                self._forget_view(handler)

    def _has_enough(self, *, few: bool) -> bool:
        """Whether every handler has due events for a while: as many as are worth knowing, or this worker's share. With
        ordered delivery they may all stand in ``few`` lines."""
        now_ns = self._ambient.clock.wall_ns()
        share = max(1, OPEN_LIMIT // max(1, len(self.digest.workers)))
        for handler in self.handlers:
            due = [name for name, item in self.view(handler).open.items() if item.due_ns <= now_ns]
            if handler in self._ordered:
                first = list(self.due(handler, now_ns))
                due = due if few and first else first
            if len(due) < OPEN_LIMIT and (len(due) < share or sum(map(self.is_mine, due)) < share):
                return False
        return True

    def _forget_view(self, handler: str) -> None:
        self._views.pop(handler, None)
        self._orders.pop(handler, None)
        self._line_ups.pop(handler, None)

    def _forget_views(self) -> None:
        self._views.clear()
        self._orders.clear()
        self._line_ups.clear()
