"""What an agent decides about its batches and collectors."""

import random

import pytest

from holdfast.base.errors import Corrupt
from holdfast.telemetry.agent.sender import (
    Answer,
    Answered,
    Backoff,
    Busy,
    Conflict,
    Denied,
    Effect,
    Event,
    NoAnswer,
    Offered,
    Park,
    Rejected,
    Release,
    Report,
    Route,
    Send,
    State,
    Taken,
    Tick,
    step,
    wakes_at_ms,
)

BACKOFF = Backoff(base_ms=100, most_ms=1_000, longest_asked_ms=60_000)


class Desk:
    """A state, and the effects of all events so far."""

    def __init__(self, routes: int = 2, window: int = 2) -> None:
        self.state = State((Route(),) * routes, window, BACKOFF)
        self.now = 0

    def tell(self, event: Event) -> list[Effect]:
        self.state, effects = step(self.state, event, self.now)
        return list(effects)

    def answer(self, batch: int, route: int, answer: Answer) -> list[Effect]:
        return self.tell(Answered(batch, route, answer, roll=0.0))


def test_a_batch_goes_to_the_collector_in_use_and_leaves_when_it_is_taken() -> None:
    desk = Desk()
    assert [desk.tell(Offered(batch)) for batch in (0, 5)] == [[Send(0, 0)], [Send(5, 0)]]
    assert desk.state.room == 0
    assert desk.answer(5, 0, Taken(False)) == [Release(5)]
    assert desk.answer(0, 0, Taken(True)) == [Release(0, duplicate=True)]
    assert desk.state.idle
    with pytest.raises(Corrupt, match="which is not in flight"):
        desk.answer(0, 0, Taken(False))


@pytest.mark.parametrize("answer", [NoAnswer("no answer"), Busy("503"), Denied("forbidden", "403")])
def test_a_failing_collector_backs_off_and_the_next_one_is_used(answer: Answer) -> None:
    desk = Desk(routes=2, window=1)
    desk.tell(Offered(0))
    report, send = desk.answer(0, 0, answer)
    assert (type(report), send, desk.state.current) == (Report, Send(0, 1), 1)
    desk.now = 10
    assert [type(each) for each in desk.answer(0, 1, answer)] == [Report]
    assert wakes_at_ms(desk.state, desk.now) == 50
    desk.now = 49
    assert desk.tell(Tick()) == []
    desk.now = 50
    assert desk.tell(Tick()) == [Send(0, 0)]


def test_backoffs_grow_up_to_a_limit_and_end_with_a_good_answer() -> None:
    desk = Desk(routes=1, window=1)
    desk.tell(Offered(0))
    rests: list[int] = []
    answers: list[Answer] = [NoAnswer("")] * 7
    for answer in (*answers, Busy("", retry_after_ms=5_000), Busy("", retry_after_ms=10**12)):
        desk.answer(0, 0, answer)
        until = wakes_at_ms(desk.state, desk.now)
        assert until is not None
        rests.append(until - desk.now)
        desk.now = until
        desk.tell(Tick())
    assert rests == [50, 100, 200, 400, 500, 500, 500, 5_500, 60_500]  # what was asked for is the least, with a bound
    assert desk.answer(0, 0, Taken(False)) == [Release(0), Report(0, "works", "answers again", good=True)]
    assert desk.state.routes == (Route(),)


def test_after_a_backoff_one_batch_is_sent_as_a_probe() -> None:
    desk = Desk(routes=1, window=3)
    for batch in (0, 1, 2):
        desk.tell(Offered(batch))
    for batch in (0, 1, 2):
        desk.answer(batch, 0, NoAnswer(""))
    assert desk.state.routes[0].failures == 1
    desk.now = 50
    assert desk.tell(Tick()) == [Send(0, 0)]
    released = [Release(0), Report(0, "works", "answers again", good=True)]
    assert desk.answer(0, 0, Taken(False)) == [*released, Send(1, 0), Send(2, 0)]


def test_a_refused_batch_is_parked_and_later_batches_are_sent() -> None:
    desk = Desk(window=4)
    for batch in range(4):
        desk.tell(Offered(batch))
    assert desk.answer(0, 0, Conflict("other bytes")) == [Park(0, 0, "identity_conflict", "other bytes")]
    assert desk.answer(1, 0, Rejected("too_large", "413")) == [Park(1, 0, "too_large", "413")]
    assert desk.answer(2, 0, Conflict("", resolved=True)) == [Release(2, resolved=True)]
    assert desk.answer(3, 0, Taken(False)) == [Release(3)]
    assert desk.state.routes[0].failures == 0


@pytest.mark.parametrize("seed", range(10))
def test_every_batch_is_settled_once_for_all_answers(seed: int) -> None:
    """Released or parked once each, never more on their way than the window, and only what waits is sent."""
    rng = random.Random(seed)
    desk = Desk(routes=rng.randint(1, 3), window=rng.randint(1, 4))
    offered = ended = 0
    done: set[int] = set()
    answers: list[Answer] = [Taken(False), Conflict(""), Rejected("r", ""), Denied("d", "")]
    answers += [Busy("", 300), NoAnswer("")]
    while ended < 40:
        effects: list[Effect] = []
        if desk.state.room and offered < 40:
            effects += desk.tell(Offered(offered))
            offered += 1
        elif desk.state.in_flight:
            batch, route = rng.choice(sorted(desk.state.in_flight))
            effects += desk.answer(batch, route, rng.choice(answers))
        else:
            wake = wakes_at_ms(desk.state, desk.now)
            assert wake is not None, "batches wait for nothing"
            desk.now = wake
            effects += desk.tell(Tick())
        for effect in effects:
            if isinstance(effect, Release | Park):
                assert effect.batch not in done
                done.add(effect.batch)
                ended += 1
        assert len(desk.state.in_flight) + len(desk.state.waiting) <= desk.state.window
    assert done == set(range(40))
