"""One random journey along relations: hops, their history, and walks of many steps."""

from dataclasses import dataclass
from random import Random
from typing import Any

from holdfast.ontology import meta
from holdfast.ontology.query.query import Query
from holdfast.ontology.session import Ontology
from tests.properties.query_model.classes import Buys, Knows, Person
from tests.properties.query_model.conditions import Where, about_own, some_people
from tests.properties.query_model.past import Past, When
from tests.properties.query_model.referee import Referee
from tests.properties.query_model.walks import Road, bought


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


async def travel(rng: Random, onto: Ontology, past: Past, referee: Referee) -> None:
    begins, along, ends = some_people(rng), about_own(rng, "Knows", 1), some_people(rng)
    free, reverse = rng.random() < 0.5, rng.random() < 0.3
    journey = Journey(onto, past, begins, None if free else along, ends, reverse)
    as_of = rng.randint(0, past.head)
    await _hops(journey, as_of, referee)
    least = rng.randint(0, 2)
    most = rng.choice((None, least + 1, least + 2)) if least < 2 else least + 1
    await _walk(journey, as_of, (least, most), referee)


async def _hops(journey: Journey, as_of: int, referee: Referee) -> None:
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


async def _walk(journey: Journey, as_of: int, depth: tuple[int, int | None], referee: Referee) -> None:
    query = journey.hop(journey.start.as_of(as_of), depth=depth)
    wanted = journey.road(as_of).walked(journey.starts(as_of), *depth)
    referee.agree("depth", query, [one.id for one in await query.all()], sorted(wanted))
