"""Streams of accepted batches: whatever is written late, out of order or in flight, every reference is given out once,
and what lies between two positions is the same at every read."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from holdfast.telemetry.accept import layout
from holdfast.telemetry.discover import HOUR_NS, ListedReference, Position, Rule, Scan, delivered_between
from tests.soak import examples

MINUTE_NS = 60 * 1_000_000_000
BEGIN_NS = 490_000 * HOUR_NS
RULE = Rule(horizon_ns=10 * MINUTE_NS, late_ns=24 * HOUR_NS)


@dataclass(frozen=True)
class Written:
    """A reference: what its listing says, and from when on it is visible."""

    reference: ListedReference
    visible_ns: int


@st.composite
def worlds(draw: st.DrawFn) -> list[Written]:
    found = []
    for number in range(draw(st.integers(1, 40))):
        written = BEGIN_NS + draw(st.integers(0, 40 * 60)) * MINUTE_NS
        # A collector's clock is off by an hour at the most; what it wrote may have waited for most of a day.
        accepted = written - draw(st.sampled_from((0, 0, 0, 1, 5, 20))) * HOUR_NS
        accepted += draw(st.integers(-30, 30)) * MINUTE_NS
        name = hashlib.sha256(str(number).encode()).hexdigest()
        key = f"{layout.hour_path(accepted)}{name}.json"
        flight = draw(st.integers(0, 9)) * MINUTE_NS
        found.append(Written(ListedReference(key, written), written + flight))
    return found


def listing(world: list[Written], begin: str, now_ns: int) -> Iterator[ListedReference]:
    visible = (each.reference for each in world if each.visible_ns <= now_ns)
    return iter(sorted((each for each in visible if each.key >= begin), key=lambda each: each.key))


def scanned(world: list[Written], start: Position, now_ns: int, deep: bool, limit: int | None) -> tuple[Scan, Position]:
    scan = Scan(RULE, start, (deep or RULE.deep(start)) and not start.more, limit)
    for each in listing(world, scan.begin, now_ns):
        if not scan.add(each):
            break
    return scan, scan.end()


@examples(60)
@given(world=worlds(), times=st.lists(st.integers(0, 45 * 60), min_size=1, max_size=12), data=st.data())
def test_every_reference_is_given_out_once(world: list[Written], times: list[int], data: st.DataObject) -> None:
    position = Position()
    given_out: list[str] = []
    passed: list[tuple[Position, Position, list[ListedReference]]] = []
    end_ns = BEGIN_NS + 60 * HOUR_NS
    for minutes in [*sorted(times), None]:
        now_ns = end_ns if minutes is None else BEGIN_NS + minutes * MINUTE_NS
        limit = None if minutes is None else data.draw(st.sampled_from((None, 1, 3)))
        if minutes is None:  # until nothing is left, and then a deep scan, as when a stream begins again
            while position.more:
                scan, after = scanned(world, position, now_ns, False, None)
                passed.append((position, after, scan.new))
                position = after
        scan, after = scanned(world, position, now_ns, minutes is None, limit)
        if scan.new or minutes is None:
            passed.append((position, after, scan.new))
            position = Position.of_offset(after.document())
            assert position == after
    given_out = [each.key for _, _, fresh in passed for each in fresh]
    assert sorted(given_out) == sorted(each.reference.key for each in world)
    for start, end, fresh in passed:
        again = delivered_between(start, end, listing(world, end.begin, end_ns))
        assert [each.key for each in again] == [each.key for each in fresh]


@examples(40)
@given(world=worlds(), limit=st.integers(1, 5), began=st.integers(0, 41 * 60))
def test_a_bounded_stream_gives_what_there_was_when_it_began(world: list[Written], limit: int, began: int) -> None:
    now_ns = BEGIN_NS + began * MINUTE_NS
    _, target = scanned(world, Position(), now_ns, True, None)
    there = [each.key for each in listing(world, "", now_ns)]
    position, found = Position(), []
    for _ in range(200):
        now_ns += 20 * MINUTE_NS  # more is written meanwhile
        scan = Scan(RULE, position, not position.more, limit, target)
        for each in listing(world, scan.begin, now_ns):
            if not scan.add(each):
                break
        if not scan.new:
            break
        position = scan.end()
        found += [each.key for each in scan.new]
    assert sorted(found) == sorted(there)
    rest = Scan(RULE, position, not position.more)
    for each in listing(world, rest.begin, BEGIN_NS + 60 * HOUR_NS):
        rest.add(each)
    assert sorted([*found, *(each.key for each in rest.new)]) == sorted(each.reference.key for each in world)


def test_recent_references_are_forgotten_once_the_floor_has_passed_them() -> None:
    world = []
    for minute in range(300):
        at_ns = BEGIN_NS + minute * MINUTE_NS
        name = hashlib.sha256(str(minute).encode()).hexdigest()
        world.append(Written(ListedReference(f"{layout.hour_path(at_ns)}{name}.json", at_ns), 0))
    _, position = scanned(world, Position(), BEGIN_NS, True, None)
    assert len(position.recent) <= 11
    assert len(position.floors) <= 2


def test_a_listing_that_took_long_leaves_room_for_what_came_meanwhile() -> None:
    early = ListedReference(f"{layout.hour_path(BEGIN_NS)}{hashlib.sha256(b'1').hexdigest()}.json", BEGIN_NS)
    late = ListedReference(
        f"{layout.hour_path(BEGIN_NS + HOUR_NS)}{hashlib.sha256(b'2').hexdigest()}.json", BEGIN_NS + 50 * MINUTE_NS
    )
    meanwhile = ListedReference(
        f"{layout.hour_path(BEGIN_NS)}{hashlib.sha256(b'3').hexdigest()}.json", BEGIN_NS + 20 * MINUTE_NS
    )
    scan = Scan(RULE, Position(), deep=True)
    assert scan.add(early)
    assert scan.add(late)
    assert scan.end().delivered(meanwhile), "a naive scan passes over it"
    assert not scan.end(took_ns=30 * MINUTE_NS).delivered(meanwhile)
