"""Generated schemas, rows and filters: whatever is committed, compacted, gathered and asked for gives
what the evaluator in this process says of the rows that a plain model has, at every commit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.base.config import OntologySection
from holdfast.ontology import Entity, Field
from holdfast.ontology.chain.history import When
from holdfast.ontology.format.data.batch import Intent
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.engine import Snapshot
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.expressions.ast import Predicate
from holdfast.ontology.types.refs import TypeId
from tests.integration.run_places import Place, memory
from tests.properties.evaluator import evaluate
from tests.properties.filters import Kind, body, predicates, rows, schemas

THING = TypeId("entity", "Thing")
KEYS = ("a", "b", "ünï", "100%", "_", "d'")
ALL = list(HealthCheck)


@dataclass(frozen=True)
class Case:
    schema: dict[str, Kind]
    commits: Sequence[dict[str, dict[str, Any] | None]]
    """What each writes by key; None to retract."""
    filters: Sequence[Predicate]
    table_bytes: int
    model: list[dict[str, Any]] = field(default_factory=list)
    """The state after each commit that was made."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    schema = draw(schemas)
    change = st.none() | rows(schema) | rows(schema)
    commits = st.lists(st.dictionaries(st.sampled_from(KEYS), change, min_size=1, max_size=4), min_size=1, max_size=4)
    filters = st.lists(predicates(schema), min_size=1, max_size=4)
    return Case(schema, draw(commits), draw(filters), draw(st.sampled_from([0, 10**6])))


def thing(schema: dict[str, Kind]) -> type[Entity]:
    annotations = {"id": Field[str], **{name: Field[kind.annotation] for name, kind in schema.items()}}  # type: ignore[name-defined]
    body: dict[str, Any] = {"__annotations__": annotations, "__module__": __name__, "id": Field(primary_key=True)}
    return type("Thing", (Entity,), body)


async def written(onto: Ontology, case: Case) -> None:
    now: dict[str, Any] = {}
    for changes in case.commits:
        for key, row in changes.items():
            if row is not None:
                now[key] = json.loads(body({"id": key, **row}))
                onto._committer.queue.append(Intent(THING, (key,), body({"id": key, **row})))
            elif key in now:
                del now[key]
                onto._committer.queue.append(Intent(THING, (key,), None))
        if await onto.commit() is not None:
            case.model.append(dict(now))


async def asked(onto: Ontology, python: type[Entity], where: Predicate, commit_id: int) -> list[str]:
    ask = replace(onto.query(python).ask, where=where, when=When(last=commit_id))

    async def question(snapshot: Snapshot) -> Any:
        found = await snapshot.rows(ask)
        sql = found.select(["r.entity_key AS key"])
        return await onto._warm.duck.table(sql.text, list(sql.params))

    return (await onto._engine.ask(question)).column("key").to_pylist()  # type: ignore[no-any-return]  # untyped


async def check(place: Place, case: Case) -> None:
    python = thing(case.schema)
    settled = place.settings.model_copy(update={"ontology": OntologySection(compaction="off")})
    async with holdfast.open(place.uri, settings=settled) as hf:
        async with hf.ontology(python) as onto:
            await written(onto, case)
        for compacted in (False, True):
            if compacted:
                await Compactor(hf.store, hf.ambient, fan=2).compact(THING)
            async with hf.ontology(python) as onto:
                onto._warm.table_bytes = case.table_bytes
                for commit_id, state in enumerate(case.model, 1):
                    for where in case.filters:
                        expected = sorted(key for key, row in state.items() if evaluate(where, row))
                        assert await asked(onto, python, where, commit_id) == expected, (commit_id, where)


@settings(suppress_health_check=ALL)
@given(cases())
async def test_filters_agree_over_commits(case: Case) -> None:
    await check(memory(), case)
