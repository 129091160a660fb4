"""A store and its model grow side by side, and answer the same questions: by a session that wrote all of it, by fresh
ones, before and after compaction."""

from random import Random

from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology
from holdfast.platform.open import Holdfast
from tests.properties.query_model.classes import CLASSES
from tests.properties.query_model.journeys import travel
from tests.properties.query_model.past import Past
from tests.properties.query_model.questions import ask
from tests.properties.query_model.referee import Objection, Referee
from tests.properties.query_model.world import grow

STAGES = 4
COMPACTED = {1: False, 2: True}
"""After which stages, and whether as a whole."""


async def trial(hf: Holdfast, seed: int, *, commits: int, questions: int) -> list[Objection]:
    """What the model has to object to. So many commits per stage, and so many questions to each session of it."""
    rng, past, objections = Random(seed), Past(), list[Objection]()
    async with hf.ontology(*CLASSES.values()) as onto, SqlTables(hf.store) as tables:
        for stage in range(STAGES):
            await grow(rng, onto, past, commits)
            objections += await _examined(rng, onto, tables, past, questions, f"seed {seed}, stage {stage}")
            async with hf.ontology(*CLASSES.values()) as fresh:
                if stage % 2:
                    fresh._warm.table_bytes = 0  # files are scanned where they lie
                objections += await _examined(rng, fresh, tables, past, questions, f"seed {seed}, stage {stage}, fresh")
            if stage in COMPACTED:
                await _compact(hf, whole=COMPACTED[stage])
                objections += await _examined(
                    rng, onto, tables, past, questions, f"seed {seed}, stage {stage}, compacted"
                )
    return objections


async def _examined(
    rng: Random, onto: Ontology, tables: SqlTables, past: Past, questions: int, label: str
) -> list[Objection]:
    referee = Referee(label)
    for number in range(questions):
        await ask(rng, onto, tables, past, referee)
        if number % 2:
            await travel(rng, onto, past, referee)
    return referee.objections


async def _compact(hf: Holdfast, *, whole: bool) -> None:
    compactor = Compactor(hf.store, hf.ambient, whole=whole)
    for type_id in await compactor.types():
        for merge in (await compactor.outlook(type_id)).merges:
            await compactor.perform(merge)
    await compactor.sweep(await compactor.types())
