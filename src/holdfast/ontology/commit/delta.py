"""The delta: the rows that a commit must write so that its intents hold. Pure.

An intent says how an identity should be. Of several intents for one identity in one commit the last one wins, and at
most one row is written. An intent that changes nothing needs no row; without rows there is no commit.

An expectation is about the committed state that the commit is based on, never about other intents. If it does not hold,
that is a ``Conflict`` and nothing is written: what the application has read is out of date.
"""

from collections.abc import Iterable, Mapping

from holdfast.base.errors import Conflict
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
    """The changes of each type that has any."""
    last: dict[TypeId, dict[Identity, Intent]] = {}
    for intent in intents:
        current = states[intent.type_id].get(intent.identity)
        if intent.expect is not None and not _holds(intent.expect, current):
            raise Conflict(_unexpected(intent, current))
        wanted = last.setdefault(intent.type_id, {})
        wanted.pop(intent.identity, None)  # so that the order is that of the last intents
        wanted[intent.identity] = intent
    found: dict[TypeId, list[Change]] = {}
    for type_id, wanted in last.items():
        changes = [
            Change(identity, intent.fields_json)
            for identity, intent in wanted.items()
            if _changes_anything(intent.fields_json, states[type_id].get(identity))
        ]
        if changes:
            found[type_id] = changes
    return found


def _live(current: Current | None) -> Current | None:
    return current if current is not None and not current.retracted else None


def _changes_anything(fields_json: str | None, current: Current | None) -> bool:
    live = _live(current)
    if fields_json is None:
        return live is not None
    return live is None or not live.has_fields(digest(fields_json))


def _holds(expect: Expectation, current: Current | None) -> bool:
    live = _live(current)
    match expect:
        case Absent():
            return live is None
        case AtCommit(commit_id):
            return live is not None and live.commit_id == commit_id
        case Equal(expected):
            return live is not None and live.has_fields(expected)


def _unexpected(intent: Intent, current: Current | None) -> str:
    name = f"{intent.type_id.name} {'/'.join(part for part in intent.identity if part)!r}"
    live = _live(current)
    if live is None:
        return f"{name} does not exist, and it was expected to"
    if isinstance(intent.expect, Absent):
        return f"{name} exists since commit {live.commit_id}, and it was expected not to"
    return f"{name} was changed by commit {live.commit_id}, and it was expected to be as before"
