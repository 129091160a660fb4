"""The claim as a table: every state and action, owners and strangers."""

from dataclasses import replace

import pytest

from holdfast.bus.claim import (
    TRANSITIONS,
    Ack,
    Action,
    Claim,
    Denied,
    Fail,
    Owner,
    Release,
    Renew,
    Retry,
    State,
    Take,
    first,
    step,
)

S = 1_000_000_000
RETRY = Retry(attempts=3, base_ms=250, max_ms=30_000, jitter_ms=100)
ACTIONS: list[Action] = [Take("b", 30_000), Renew(30_000), Ack(), Fail("no", RETRY), Release()]
FRESH = first("n", "e", "h", Take("a", 30_000), 10 * S)
STATES = {
    State.CLAIMED: FRESH,
    State.EXPIRED: replace(FRESH, lease_ns=10 * S),
    State.WAITING: replace(FRESH, lease_ns=10 * S, last_error="no", attempts=1, available_ns=11 * S),
    State.ACKED: replace(FRESH, ack_ns=11 * S),
    State.DEAD: replace(FRESH, dead_ns=11 * S, last_error="no", attempts=3),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: type(action).__name__)
def test_the_table_says_what_is_possible(state: State, action: Action) -> None:
    claim = STATES[state]
    assert claim.state(12 * S) is state
    after = step(claim, action, 12 * S, claim.owner)
    if (state, type(action)) in TRANSITIONS:
        assert isinstance(after, Claim)
        assert after.state(12 * S) in TRANSITIONS[state, type(action)]
    else:
        assert isinstance(after, Denied)


@pytest.mark.parametrize("action", ACTIONS[1:], ids=lambda action: type(action).__name__)
@pytest.mark.parametrize("stranger", [Owner("b", 1), Owner("a", 2), None])
def test_only_the_owner_acts(action: Action, stranger: Owner | None) -> None:
    assert isinstance(step(FRESH, action, 12 * S, stranger), Denied)


def test_a_reclaim_keeps_attempts_and_clears_the_rest() -> None:
    again = step(STATES[State.WAITING], Take("b", 5_000), 20 * S)
    assert isinstance(again, Claim)
    assert (again.session_id, again.generation, again.attempts) == ("b", 2, 1)
    assert (again.claimed_ns, again.lease_ns) == (20 * S, 25 * S)
    assert (again.last_error, again.ack_ns, again.dead_ns) == (None, None, None)


def test_no_claim_is_made_before_it_is_due() -> None:
    for claim in (STATES[State.CLAIMED], replace(STATES[State.WAITING], available_ns=13 * S)):
        denied = step(claim, Take("b", 1), 12 * S)
        assert isinstance(denied, Denied)
        assert denied.due_ns == claim.due_ns > 12 * S


def test_the_last_failure_is_death_and_a_hopeless_one_is_the_last() -> None:
    claim = FRESH
    for attempt in (1, 2):
        failed = step(claim, Fail("no", RETRY), 11 * S, claim.owner)
        assert isinstance(failed, Claim)
        assert (failed.attempts, failed.dead_ns) == (attempt, None)
        taken = step(failed, Take("a", 30_000), 60 * S)
        assert isinstance(taken, Claim)
        claim = taken
    dead = step(claim, Fail("", RETRY), 61 * S, claim.owner)
    assert isinstance(dead, Claim)
    assert (dead.attempts, dead.dead_ns, dead.last_error) == (3, 61 * S, "handler failure")
    hopeless = step(FRESH, Fail("no", RETRY, hopeless=True), 11 * S, FRESH.owner)
    assert isinstance(hopeless, Claim)
    assert hopeless.state(11 * S) is State.DEAD


def test_backoff_doubles_up_to_its_limit() -> None:
    delays = [RETRY.delay_ns(attempts, 0.0) // 1_000_000 for attempts in range(1, 10)]
    assert delays == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    assert RETRY.delay_ns(1, 1.0) // 1_000_000 == 600
    assert RETRY.delay_ns(10_000, 0.0) // 1_000_000 == 30_000
