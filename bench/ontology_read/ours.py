"""Holdfast: a session of an ontology, asked through the query language."""

from typing import Any

import pyarrow as pa

from bench.ontology_read.data import Customer, History, Product, Size, Subscription
from bench.ontology_read.places import Place
from bench.ontology_read.questions import Question
from bench.ontology_read.sides import Session, Side
from holdfast.base.config import OntologySection
from holdfast.ontology import count, left
from holdfast.ontology.maintain.compact import Compactor
from holdfast.platform.open import open_platform


def opened(place: Place, name: str) -> Any:
    """Nothing is compacted by itself here: it is asked before, and again after."""
    uri = place.uri(name)
    settings = place.settings.model_copy(update={"ontology": OntologySection(compaction="off")})
    return open_platform(uri if place.endpoint is not None else f"file:{uri}", settings=settings)


class Ours(Side):
    name = "ours"

    async def begin(self, history: History) -> None:
        self._platform = opened(self.place, self.name)
        self._onto = (await self._platform.__aenter__()).ontology(Customer, Product, Subscription)

    async def commit(self, number: int, customers: pa.Table, history: History) -> None:
        self._onto.ensure(customers, Customer)
        if number == 1:
            self._onto.ensure(history.products, Product)
            self._onto.ensure(history.subscriptions, Subscription)
        await self._onto.commit()

    async def end(self) -> None:
        await self._onto.close()
        await self._platform.__aexit__(None, None, None)

    async def compact(self) -> bool:
        async with opened(self.place, self.name) as hf:
            compactor = Compactor(hf.store, hf.ambient, whole=True)
            for type_id in await compactor.types():
                await compactor.compact(type_id)
        return True

    async def session(self, place: Place) -> Session:
        platform = opened(place, self.name)
        return _Queries(platform, await platform.__aenter__(), self.size)


class _Queries(Session):
    def __init__(self, platform: Any, hf: Any, size: Size) -> None:
        self._platform = platform
        self._size = size
        self._onto = hf.ontology(Customer, Product, Subscription)

    async def ask(self, question: Question) -> pa.Table:
        customers = self._onto.query(Customer)
        gold = Customer.tier == "Gold"
        match question.name:
            case "latest":
                return await customers.arrow()
            case "as of":
                return await customers.as_of(self._size.middle).arrow()
            case "filtered":
                return await customers.where(gold, Customer.age >= 80).arrow()
            case "aggregated":
                groups = customers.group_by(Customer.tier)
                found = await groups.agg(n=count(), mean_age=Customer.age.avg(), most=Customer.balance.max())
                return pa.table({name: [group[name] for group in found] for name in found[0]})
            case "lookup":
                return await customers.where(Customer.id == self._size.wanted_key).arrow()
            case "relation":
                asked = self._onto.query(Subscription)
                return await asked.where(left(Subscription).tier == "Gold", Subscription.seats > 6).arrow()
            case "traversal":
                near = customers.where(Customer.city == "City 7", Customer.age > 60)
                return await near.via(Subscription).arrow()
        raise ValueError(question.name)

    async def close(self) -> None:
        await self._onto.close()
        await self._platform.__aexit__(None, None, None)
