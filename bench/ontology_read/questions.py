"""What everybody is asked, and a digest of the answer: all contenders must give the same."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bench.ontology_read.data import Size


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    sql: str
    """Over tables customer, product and subscription; ``:key`` is the key of a point lookup."""
    past: bool = False
    """It is about the middle of the history."""
    scans: tuple[tuple[str, str | None, tuple[str, ...]], ...] = ()
    """For engines without SQL: tables, their conditions and columns."""

    def text(self, size: Size) -> str:
        return self.sql.replace(":key", f"'{size.wanted_key}'")


EVERY = ("id", "name", "tier", "city", "age", "balance")
QUESTIONS = (
    Question("latest", "SELECT * FROM customer ORDER BY id", scans=(("customer", None, EVERY),)),
    Question("as of", "SELECT * FROM customer ORDER BY id", past=True, scans=(("customer", None, EVERY),)),
    Question(
        "filtered",
        "SELECT * FROM customer WHERE tier = 'Gold' AND age >= 80 ORDER BY id",
        scans=(("customer", "tier == 'Gold' and age >= 80", EVERY),),
    ),
    Question(
        "aggregated",
        "SELECT tier, count(*) AS n, avg(age) AS age, max(balance) AS most FROM customer GROUP BY tier ORDER BY tier",
        scans=(("customer", None, ("tier", "age", "balance")),),
    ),
    Question("lookup", "SELECT * FROM customer WHERE id = :key", scans=(("customer", "id == :key", EVERY),)),
    Question(
        "relation",
        "SELECT s.* FROM subscription s JOIN customer c ON c.id = s.left_key "
        "WHERE c.tier = 'Gold' AND s.seats > 6 ORDER BY s.left_key, s.right_key",
        scans=(
            ("subscription", "seats > 6", ("left_key", "right_key", "seats")),
            ("customer", "tier == 'Gold'", ("id", "tier")),
        ),
    ),
    Question(
        "traversal",
        "SELECT p.* FROM product p WHERE p.sku IN (SELECT s.right_key FROM subscription s WHERE s.left_key IN "
        "(SELECT c.id FROM customer c WHERE c.city = 'City 7' AND c.age > 60)) ORDER BY p.sku",
        scans=(
            ("product", None, ("sku", "price")),
            ("subscription", None, ("left_key", "right_key", "seats")),
            ("customer", "city == 'City 7' and age > 60", ("id", "city", "age")),
        ),
    ),
)


def digest(found: pa.Table) -> tuple[int, float]:
    """Rows, and a sum over all that is a number; equal for equal answers, whatever their columns are called."""
    total = 0.0
    for column in found.columns:
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            total += float(pc.sum(column).as_py() or 0)
    return found.num_rows, round(total, 2)
