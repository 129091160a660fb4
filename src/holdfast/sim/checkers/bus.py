"""Judges of the bus: what landed in the store against the rules of claims, dead letters and deliveries.

They read objects as the specification describes them and share no code with the bus.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from holdfast.sim.history import Landing, Violation, written

ONE_OWNER = "a claim has one owner"
OWNER_ONLY = "only the owner changes a claim"
FINAL = "a settled claim never changes"
ATTEMPTS = "attempts count failures"
NOT_AGAIN = "an acked event is never handed out again"
NEVER_LOST = "no event is lost"
STATE_FIRST = "a dead letter follows its claim"
REPAIRED = "a dead claim has its letter and its event"
EMITTED_ONCE = "what a handler emits becomes visible once, with its ack"
ONCE_PER_KEY = "a key is published once"
IN_ORDER = "events of one ordering key are handled one after the other, oldest first"
ONCE_PER_TICK = "a tick fires once"
EVERY_TICK = "no tick is left out"


class Execution(NamedTuple):
    """A handler was called: where in the order of events, for which event, under which claim."""

    position: int
    event_id: str
    handler_id: str
    session_id: str
    generation: int


class Seen(NamedTuple):
    position: int
    claim: dict[str, Any] | None
    """None where the claim was deleted."""


def claim_histories(landings: Iterable[Landing]) -> dict[tuple[str, str], list[Seen]]:
    """Per event and handler, every state of the claim in the order in which it landed."""
    found: dict[tuple[str, str], list[Seen]] = defaultdict(list)
    for landing in landings:
        parts = landing.key.split("/")
        if parts[0] == "claims":
            body = None if landing.body is None else json.loads(landing.body)
            found[parts[2], parts[3].removesuffix(".json")].append(Seen(landing.position, body))
    return found


def claims_are_kept(landings: Iterable[Landing], max_attempts: int) -> Iterator[Violation]:
    """Every step of every claim is one that its owner, or the next owner, may make."""
    for (event_id, handler_id), states in claim_histories(landings).items():
        who = f"{event_id} in {handler_id}"
        before: dict[str, Any] | None = None
        for _, after in states:
            if before is not None and after is not None:
                yield from _step(who, before, after)
            elif after is not None and (after["attempts"], after["ack_at"], after["dead_lettered_at"]) != (
                0,
                None,
                None,
            ):
                yield Violation(FINAL, f"{who}: created as {after}")
            if after is not None and after["dead_lettered_at"] is not None and after["attempts"] < max_attempts:
                yield Violation(ATTEMPTS, f"{who}: dead after {after['attempts']} of {max_attempts} failures")
            before = after


def _step(who: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Violation]:
    same = (before["session_id"], before["generation"]) == (after["session_id"], after["generation"])
    if before["ack_at"] is not None or before["dead_lettered_at"] is not None:
        yield Violation(FINAL, f"{who}: {before} became {after}")
    if not same and after["generation"] != before["generation"] + 1:
        yield Violation(ONE_OWNER, f"{who}: generation {before['generation']} was followed by {after['generation']}")
    if not same and any(after[name] is not None for name in ("ack_at", "dead_lettered_at", "last_error")):
        yield Violation(OWNER_ONLY, f"{who}: {after['session_id']} acted on the claim of {before['session_id']}")
    failed = after["last_error"] is not None and after["last_error"] != "handed back"
    grown = after["attempts"] - before["attempts"]
    if grown != (1 if same and failed else 0):
        yield Violation(ATTEMPTS, f"{who}: {before['attempts']} became {after['attempts']} in {after}")


def by_owner(landings: Iterable[Landing]) -> Iterator[Violation]:
    """Where sessions are named after processes: every state of a claim was written by the session that it names."""
    for landing, body in written(landings, "claims/"):
        named = json.loads(body)["session_id"]
        if named != landing.process:
            yield Violation(OWNER_ONLY, f"{landing.key}: {landing.process} wrote over the claim of {named}")


def not_handed_out_again(landings: Iterable[Landing], executions: Iterable[Execution]) -> Iterator[Violation]:
    """No execution rests on a claim that landed after an ack."""
    histories = claim_histories(landings)
    for run in executions:
        states = histories[run.event_id, run.handler_id]
        acks = [seen.position for seen in states if seen.claim is not None and seen.claim["ack_at"] is not None]
        taken = [
            seen.position
            for seen in states
            if seen.position < run.position
            and seen.claim is not None
            and (seen.claim["session_id"], seen.claim["generation"]) == (run.session_id, run.generation)
        ]
        if acks and taken and min(taken) > min(acks):
            yield Violation(NOT_AGAIN, f"{run} was claimed at {min(taken)}, acked at {min(acks)}")


def none_lost(landings: Iterable[Landing], published: Iterable[str], handler_id: str) -> Iterator[Violation]:
    """Every published event was acked or buried at some time."""
    histories = claim_histories(landings)
    for event_id in published:
        states = [seen.claim for seen in histories[event_id, handler_id] if seen.claim is not None]
        if not any(claim["ack_at"] is not None or claim["dead_lettered_at"] is not None for claim in states):
            yield Violation(NEVER_LOST, f"{event_id} was published, and its claim was last {states[-1:]}")


def in_order(landings: list[Landing], handler_id: str) -> Iterator[Violation]:
    """No event with an ordering key is claimed before an older one of its key is settled.

    Two may come too late to be waited for: one that landed after the younger one did, and one that consumers have
    passed over, because its publisher's clock is far behind: the cursor is past it before it was found.
    """
    histories = claim_histories(landings)
    born: dict[str, tuple[int, str, str]] = {}
    for landing, body in written(landings, "events/"):
        event = json.loads(body)
        if event.get("order_key") is not None:
            name = landing.key.rpartition("/")[2].removesuffix(".json")
            born.setdefault(name, (landing.position, event["id"], event["order_key"]))
    passed = _passed_over(landings, born, handler_id)
    for older, younger in combinations(sorted(born), 2):
        (old_at, old_id, key), (young_at, young_id, its_key) = born[older], born[younger]
        claims = [seen.position for seen in histories[young_id, handler_id]]
        if key != its_key or not claims or old_at > young_at or passed.get(older, min(claims)) < min(claims):
            continue
        settled = [
            seen.position
            for seen in histories[old_id, handler_id]
            if seen.claim is not None and (seen.claim["ack_at"] or seen.claim["dead_lettered_at"])
        ]
        if min(settled, default=min(claims)) >= min(claims):
            yield Violation(IN_ORDER, f"{key}: {younger} was claimed at {min(claims)}, before {older} was settled")


def _passed_over(landings: list[Landing], names: Iterable[str], handler_id: str) -> dict[str, int]:
    """When the cursor first was past a name that had not been found yet."""
    known: set[str] = set()
    passed: dict[str, int] = {}
    for landing, body in written(landings, "bus/"):
        if landing.key.endswith("/digest.json"):
            section = json.loads(body)["handlers"].get(handler_id)
            if section is not None:
                known |= {*section["open"], *section["recent"]}
                for name in names:
                    if name <= section["cursor"] and name not in known:
                        passed.setdefault(name, landing.position)
    return passed


def events_of(landings: Iterable[Landing]) -> dict[str, dict[str, Any]]:
    """Every event that ever landed, by its key."""
    return {landing.key: json.loads(body) for landing, body in written(landings, "events/")}


def letters_follow(landings: list[Landing], *, complete: bool) -> Iterator[Violation]:
    """A dead letter and its event exist only where the claim is dead; if ``complete``, wherever it is."""
    dead: dict[tuple[str, str], int] = {}
    for pair, states in claim_histories(landings).items():
        for position, claim in states:
            if claim is not None and claim["dead_lettered_at"] is not None:
                dead.setdefault(pair, position)
    letters: dict[tuple[str, str], int] = {}
    notices: dict[tuple[str, str], set[str]] = defaultdict(set)
    for landing, _ in written(landings, "dead_letters/"):
        _, _, event_id, name = landing.key.split("/")
        letters.setdefault((event_id, name.removesuffix(".json")), landing.position)
    for landing, body in written(landings, "events/"):
        event = json.loads(body)
        if event["type"] == "event.dead_letter":
            pair = event["payload"]["event_id"], event["payload"]["handler_id"]
            notices[pair].add(landing.key)
            letters[pair] = min(letters.get(pair, landing.position), landing.position)
    for pair, position in letters.items():
        if pair not in dead or dead[pair] > position:
            yield Violation(STATE_FIRST, f"{pair} at {position}, its claim died at {dead.get(pair)}")
    for pair in dead:
        if len(notices[pair]) > 1:
            yield Violation(REPAIRED, f"{pair} has {len(notices[pair])} events")
        if complete and (pair not in letters or not notices[pair]):
            yield Violation(REPAIRED, f"{pair} is dead, and has no letter or no event")


def emitted_once(landings: list[Landing], child_type: str, *, complete: bool) -> Iterator[Violation]:
    """An acked event has exactly one child of this type, any other none."""
    children: dict[str, set[str]] = defaultdict(set)
    for key, event in events_of(landings).items():
        if event["type"] == child_type:
            children[event["parent_event_id"]].add(key)
    acks = {
        event_id: seen.claim
        for (event_id, _), states in claim_histories(landings).items()
        for seen in states
        if seen.claim is not None and seen.claim["ack_at"] is not None
    }
    acked = {event_id for event_id, claim in acks.items() if claim.get("outbox")}
    for parent, keys in children.items():
        if parent not in acks or len(keys) > 1:
            yield Violation(EMITTED_ONCE, f"{parent} ({'acked' if parent in acks else 'not acked'}) has {sorted(keys)}")
    if complete:
        for parent in acked - children.keys():
            yield Violation(EMITTED_ONCE, f"{parent} was acked, and what it emitted is not there")


def once_each(landings: list[Landing], rule: str, label: str) -> Iterator[Violation]:
    """Of all events whose payload has the same ``label``, one was ever published."""
    found: dict[str, set[str]] = defaultdict(set)
    for key, event in events_of(landings).items():
        if event["payload"].get(label) is not None:
            found[event["payload"][label]].add(key)
    for value, keys in found.items():
        if len(keys) > 1:
            yield Violation(rule, f"{value}: {sorted(keys)}")


def one_event_per_tick(landings: list[Landing], type_name: str) -> Iterator[Violation]:
    """Of all events of this type that bear the same time, one was ever published; and none between two minutes."""
    found: dict[str, set[str]] = defaultdict(set)
    for key, event in events_of(landings).items():
        if event["type"] == type_name:
            found[event["created_at"]].add(key)
    for moment, keys in found.items():
        if len(keys) > 1 or ":00.000000" not in moment:
            yield Violation(ONCE_PER_TICK, f"{moment}: {sorted(keys)}")


def every_tick(landings: list[Landing], type_name: str, answer: int, *, gaps: bool) -> Iterator[Violation]:
    """Ticks are a minute apart, unless there may be gaps; who says that it fired did."""
    moments = sorted({event["created_at"] for event in events_of(landings).values() if event["type"] == type_name})
    if answer > len(moments):
        yield Violation(EVERY_TICK, f"{answer} were said to have fired, and there are {len(moments)}")
    minutes = [datetime.fromisoformat(moment) for moment in moments]
    for earlier, later in pairwise(minutes if not gaps else ()):
        if later - earlier != timedelta(minutes=1):
            yield Violation(EVERY_TICK, f"after {earlier} came {later}")
