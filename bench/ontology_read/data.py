"""The data that all contenders hold: customers that change commit by commit, products, subscriptions between them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.ontology import Entity, Field, Relation

TIERS = np.array(["Gold", "Silver", "Std", "Trial"])
CITIES = 100
CHANGED_SHARE = 1_000
"""Of so many customers one changes in each commit after the first."""


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str]
    city: Field[str]
    age: Field[int]
    balance: Field[float]


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    price: Field[float]


class Subscription(Relation[Customer, Product]):
    seats: Field[int]


@dataclass(frozen=True, slots=True)
class Size:
    entities: int
    commits: int

    @property
    def label(self) -> str:
        return f"{self.entities:,} entities, {self.commits:,} commits"

    @property
    def changed(self) -> int:
        return max(1, self.entities // CHANGED_SHARE)

    @property
    def products(self) -> int:
        return max(10, self.entities // 100)

    @property
    def middle(self) -> int:
        """The commit that questions about the past are about."""
        return max(1, self.commits // 2)

    @property
    def wanted_key(self) -> str:
        """The customer of point lookups."""
        return _key(self.entities * 2 // 3)


def _key(number: int) -> str:
    return f"c{number:08d}"


class History:
    """What each commit writes, and the state that it leaves. The same for everybody, from a fixed seed."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._random = np.random.default_rng(7)
        count = size.entities
        self._keys = np.array([_key(number) for number in range(count)])
        self._tier = self._random.integers(0, len(TIERS), count)
        self._city = self._random.integers(0, CITIES, count)
        self._age = self._random.integers(18, 90, count)
        self._balance = self._random.uniform(0, 1_000, count).round(2)
        skus = [f"p{number:07d}" for number in range(size.products)]
        self.products = pa.table({"sku": skus, "price": self._random.uniform(1, 100, size.products).round(2)})
        self.subscriptions = pa.table(
            {
                "left_key": pa.array(self._keys.tolist()),
                "right_key": pa.array([skus[one] for one in self._random.integers(0, size.products, count)]),
                "seats": self._random.integers(1, 9, count),
            }
        )

    def commits(self) -> Iterator[tuple[int, pa.Table]]:
        """The customers that each commit writes, from the first on."""
        yield 1, self.state()
        for number in range(2, self.size.commits + 1):
            some = np.sort(self._random.choice(self.size.entities, self.size.changed, replace=False))
            self._tier[some] = self._random.integers(0, len(TIERS), len(some))
            self._age[some] = self._random.integers(18, 90, len(some))
            self._balance[some] = self._random.uniform(0, 1_000, len(some)).round(2)
            yield number, self._rows(some)

    def state(self) -> pa.Table:
        """All customers as they are after the commits so far, by key."""
        return self._rows(np.arange(self.size.entities))

    def _rows(self, some: np.ndarray) -> pa.Table:
        return pa.table(
            {
                "id": pa.array(self._keys[some].tolist()),
                "name": pa.array([f"Customer number {number}" for number in some]),
                "tier": pa.array(TIERS[self._tier[some]].tolist()),
                "city": pa.array([f"City {number}" for number in self._city[some]]),
                "age": self._age[some],
                "balance": self._balance[some],
            }
        )
