"""Intents against what is current: the rows that a commit must write. Pure.

An intent says how an identity should be. Of several intents for one identity in one commit the last one wins, and gives
one row at most. Where nothing would change there is no row; without rows there is no commit.

An expectation is about the committed state that the commit rests on, never about other intents. One that does not hold
is a ``Conflict``, and nothing is written: the application has read something that is no longer so.
"""

from collections.abc import Iterable, Mapping

from holdfast.base.errors import Conflict, Refused
from holdfast.ontology.format.data.batch import (
    Absent,
    AtCommit,
    Change,
    Current,
    Equal,
    Expectation,
    Identity,
    Intent,
    Known,
    digest,
)
from holdfast.ontology.types.refs import TypeId

Delta = Mapping[TypeId, list[Change]]
States = Mapping[TypeId, Known]


def delta(intents: Iterable[Intent], states: States) -> Delta:
    """The rows that must be written so that every intent holds."""
    last: dict[TypeId, dict[Identity, Intent]] = {}
    for intent in intents:
        current = states[intent.type_id].get(intent.identity)
        if intent.expect is not None and not _holds(intent.expect, current):
            raise Conflict(_unexpected(intent, current))
        wanted = last.setdefault(intent.type_id, {})
        wanted.pop(intent.identity, None)
        wanted[intent.identity] = intent
    found = {type_id: _changes(wanted, states[type_id]) for type_id, wanted in last.items()}
    return {type_id: changes for type_id, changes in found.items() if changes}


def check_ends(
    changes: Delta, intents: Iterable[Intent], states: States, ends: Mapping[TypeId, tuple[TypeId, TypeId]]
) -> None:
    """``Refused`` for a relation that would be written while one of its ends does not exist, even then."""
    wanted = {(intent.type_id, intent.identity): intent.fields_json is not None for intent in intents}
    for relation, (left, right) in ends.items():
        for change in changes.get(relation, ()):
            if change.fields_json is None:
                continue
            for end, key in ((left, change.identity[0]), (right, change.identity[1])):
                known = states.get(end)
                current = known.get((key,)) if known is not None else None
                live = current is not None and not current.retracted
                if not wanted.get((end, (key,)), live):
                    raise Refused(
                        f"{relation.name} {'/'.join(change.identity[:2])!r}: there is no {end.name} {key!r}",
                        remedy="ensure it in the same commit or before, or open the ontology without strict",
                    )


def _changes(wanted: Mapping[Identity, Intent], state: Known) -> list[Change]:
    return [
        Change(identity, intent.fields_json)
        for identity, intent in wanted.items()
        if _changes_anything(intent.fields_json, state.get(identity))
    ]


def _changes_anything(fields_json: str | None, current: Current | None) -> bool:
    live = current is not None and not current.retracted
    if fields_json is None:
        return live
    return not live or current is None or not current.says(digest(fields_json))


def _holds(expect: Expectation, current: Current | None) -> bool:
    live = current if current is not None and not current.retracted else None
    match expect:
        case Absent():
            return live is None
        case AtCommit(commit_id):
            return live is not None and live.commit_id == commit_id
        case Equal(expected):
            return live is not None and live.says(expected)


def _unexpected(intent: Intent, current: Current | None) -> str:
    name = f"{intent.type_id.name} {'/'.join(part for part in intent.identity if part)!r}"
    if current is None or current.retracted:
        return f"{name} does not exist, and it was expected to"
    if isinstance(intent.expect, Absent):
        return f"{name} exists since commit {current.commit_id}, and it was expected not to"
    return f"{name} was changed by commit {current.commit_id}, and it was expected to be as before"
