"""The digest as pure data: nothing is forgotten, whatever the order in which workers write."""

import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.bus import layout
from holdfast.bus.worker.digest import (
    LAG_NS,
    TAIL,
    Change,
    Item,
    Section,
    apply,
    fold,
    forget_before,
    next_cursor,
)

NOW = 1_800_000_000 * 10**9
ITEM = Item(100, "t")


def name(number: int, *, age_s: float = 0.0) -> str:
    return layout.event_name(NOW - int(age_s * 1e9) + number * 1_000, f"id{number:04}")


def open_section(*numbers: int) -> Section:
    return apply(Section(("t",)), Change(found={name(number): ITEM for number in numbers}))


def test_settled_names_fold_when_the_cursor_passes_them() -> None:
    section = apply(open_section(1, 2, 3), Change(settled={name(1), name(3)}))
    assert section.recent == {name(1), name(3)}
    assert set(section.open) == {name(2)}
    passed = apply(section, Change(cursor=name(3)))
    assert passed.recent == frozenset()
    assert sum(count for count, _ in passed.folded.values()) == 2
    later = apply(passed, Change(settled={name(2)}))
    assert not later.open
    assert later.folded == {layout.bucket(name(1)): fold([name(1), name(2), name(3)])}


def test_what_is_settled_does_not_come_up_again_while_it_is_recent() -> None:
    settled = apply(open_section(1), Change(settled={name(1)}))
    assert not apply(settled, Change(found={name(1): ITEM})).open


def test_the_cursor_keeps_half_a_page_or_the_lag_and_never_passes_the_present() -> None:
    young = {name(number) for number in range(TAIL + 20)}
    now_ns = NOW + TAIL * 10**6
    cursor = next_cursor(Section(), Change(settled=young), max(young), now_ns)
    assert sum(each > cursor for each in young) == TAIL
    assert next_cursor(Section(), Change(settled={name(1)}), name(1), NOW + 10**9) == ""
    old = {name(number, age_s=60) for number in range(5)}
    assert next_cursor(Section(), Change(settled=old), max(old), NOW) == max(old)
    future = {name(number, age_s=-3_600) for number in range(TAIL * 3)}
    assert next_cursor(Section(), Change(settled=future), max(future), NOW) == ""
    assert LAG_NS < 60 * 10**9


def test_a_wrong_fold_is_corrected_unless_another_worker_changed_it() -> None:
    section = apply(open_section(1, 2), Change(settled={name(1), name(2)}, cursor=name(2)))
    bucket = layout.bucket(name(1))
    seen, right = section.folded[bucket], fold([name(1)])
    assert apply(section, Change(refold={bucket: (seen, right)})).folded[bucket] == right
    assert apply(section, Change(refold={bucket: ((9, 9), right)})).folded[bucket] == seen


def test_cleaning_forgets_what_is_before() -> None:
    section = apply(open_section(1, 2, 3), Change(settled={name(1)}, cursor=name(1)))
    kept = forget_before(section, name(2))
    assert set(kept.open) == {name(2), name(3)}
    assert name(1) < kept.cursor < name(2)  # which may not have been looked at


NUMBERS = st.integers(0, 12)
CHANGES = st.builds(
    lambda found, settled, cursor: (found, settled, cursor),
    st.frozensets(NUMBERS),
    st.frozensets(NUMBERS),
    st.one_of(st.none(), NUMBERS),
)


@given(st.lists(CHANGES, max_size=12), st.randoms(use_true_random=False))
def test_no_order_of_changes_loses_an_open_event(changes: list, rng: random.Random) -> None:
    """A name that was found and not settled is open in the end.

    A cursor passes only what is known to the section or stands in the same change; what others say of names before it
    they have found later, by a sweep, or it was known.
    """
    made = [
        Change(
            found={name(number): ITEM for number in found | settled},
            settled={name(number) for number in settled},
            cursor="" if cursor is None else name(cursor),
        )
        for found, settled, cursor in changes
    ]
    rng.shuffle(made)
    section = Section()
    for change in made:
        known = {*section.open, *section.recent, *change.found, *change.settled}
        reached = [each for each in map(name, range(13)) if section.cursor < each <= change.cursor]
        gap = next((place for place, each in enumerate(reached) if each not in known), len(reached))
        change.cursor = reached[gap - 1] if gap else ""
        change.late = {each for each in change.found if each <= section.cursor and each not in section.open}
        section = apply(section, change)
    found = {each for change in made for each in change.found}
    settled = {each for change in made for each in change.settled}
    assert found - settled <= set(section.open)
    assert not set(section.open) & section.recent
    assert all(each > section.cursor for each in section.recent)
