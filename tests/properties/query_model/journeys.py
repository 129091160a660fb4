"""One random journey along relations: hops, their history and differences, walks of many steps, shortest ways."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from holdfast.ontology import meta
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology
from tests.properties.query_model.classes import Buys, Knows, Person
from tests.properties.query_model.conditions import Where, about_own, some_people
from tests.properties.query_model.past import Past, Sight, Version, When
from tests.properties.query_model.referee import Referee
from tests.properties.query_model.walks import Road, bought
from tests.properties.query_model.words import repeat_keys


@dataclass(frozen=True)
class Journey:
    """From people along ``Knows`` to people, of whom some are asked for."""

    onto: Ontology
    past: Past
    begins: Where
    along: Where | None
    ends: Where
    reverse: bool

    @property
    def start(self) -> Query[Person]:
        return self.onto.query(Person).where(self.begins.asked)

    def hop(self, start: Query[Person], **depth: Any) -> Query[Any]:
        return start.via(Knows, None if self.along is None else self.along.asked, reverse=self.reverse, **depth)

    def road(self, as_of: int) -> Road:
        return Road.of(self.past, as_of, None if self.along is None else self.along.holds, reverse=self.reverse)

    def starts(self, as_of: int) -> set[str]:
        return self.past.people(as_of, self.begins.holds)

    def led_to(self, as_of: int) -> set[str]:
        return self.road(as_of).led_to(self.starts(as_of))


async def travel(rng: Random, onto: Ontology, tables: SqlTables, past: Past, referee: Referee) -> None:
    begins, along, ends = some_people(rng), about_own(rng, "Knows", 1), some_people(rng)
    free, reverse = rng.random() < 0.5, rng.random() < 0.3
    journey = Journey(onto, past, begins, None if free else along, ends, reverse)
    as_of = rng.randint(0, past.head)
    await _hops(journey, tables, as_of, referee)
    await _differences(journey, rng.randint(0, as_of), as_of, referee)
    least = rng.randint(0, 2)
    most = rng.choice((None, least + 1, least + 2)) if least < 2 else least + 1
    await _walk(journey, tables, as_of, (least, most), referee)
    await _shortest(journey, as_of, referee)


async def _hops(journey: Journey, tables: SqlTables, as_of: int, referee: Referee) -> None:
    past, query = journey.past, journey.hop(journey.start.as_of(as_of))
    met = journey.road(as_of).step(journey.starts(as_of))
    referee.agree("via", query, [one.id for one in await query.all()], sorted(met))
    history, reached = query.with_history(), journey.led_to(as_of)
    got = [(meta(one).commit_id, one.id) for one in await history.all()]
    rows = past.rows("Person", lambda sight: sight.own["id"] in reached, When(1, as_of, history=True))
    referee.agree("history via", history, got, [(row.commit_id, row.key[0]) for row in rows])
    items = query.where(journey.ends.asked).via(Buys)
    wanted = bought(past, as_of, met & past.people(as_of, journey.ends.holds))
    referee.agree("via two", items, [str(one.sku) for one in await items.all()], wanted)
    referee.agree("count via two", items, await items.count(), len(wanted))
    await repeat_keys(tables, items, wanted, referee)


async def _differences(journey: Journey, older: int, newer: int, referee: Referee) -> None:
    query = journey.hop(journey.start).where(journey.ends.asked)
    reached = {as_of: journey.led_to(as_of) for as_of in (older, newer)}

    def among(row: Version, as_of: int) -> bool:
        return row.key[0] in reached[as_of] and journey.ends.holds(Sight(row.fact))

    got = [(each.key, each.action) for each in await query.diff(older, newer)]
    referee.agree("diff via", (query, older, newer), got, journey.past.differences("Person", older, newer, among))


async def _walk(
    journey: Journey, tables: SqlTables, as_of: int, depth: tuple[int, int | None], referee: Referee
) -> None:
    query = journey.hop(journey.start.as_of(as_of), depth=depth)
    wanted = journey.road(as_of).walked(journey.starts(as_of), *depth)
    referee.agree("depth", query, [one.id for one in await query.all()], sorted(wanted))
    await repeat_keys(tables, query, sorted(wanted), referee)


async def _shortest(journey: Journey, as_of: int, referee: Referee) -> None:
    start = journey.start.as_of(as_of)
    along = None if journey.along is None else journey.along.asked
    way = await start.shortest_path(Knows, journey.ends.asked, along, reverse=journey.reverse)
    road, starts = journey.road(as_of), journey.starts(as_of)
    goals = journey.past.people(as_of, journey.ends.holds)
    steps = None if way is None else len(way) - 1
    referee.agree("shortest path", (start, journey.ends.asked), steps, road.steps_between(starts, goals))
    if way is None:
        return
    keys = [one.id for one in way]
    leads = all(pair in road.pairs for pair in pairwise(keys))
    referee.agree("way", (start, keys), (keys[0] in starts, keys[-1] in goals, leads), (True, True, True))
