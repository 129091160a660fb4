"""Lookups and narrow filters in a large file of a bucket: its footer and the row groups that matter, at the server."""

import hashlib

import pyarrow as pa
import pytest

import holdfast
from holdfast.base.config import OntologySection
from holdfast.base.ids import Ambient
from holdfast.ontology import Entity, Field, layout
from holdfast.ontology.compact import Compactor
from holdfast.ontology.narrow import FROM_BYTES, PIECES
from holdfast.ontology.ranged import TAIL_BYTES
from holdfast.ontology.refs import TypeId
from holdfast.ontology.rows import ROW_GROUP
from holdfast.sim.proxy import FaultProxy
from tests.integration.proxy_kit import settings
from tests.integration.servers import S3Server

ROWS = 4 * ROW_GROUP + 5_000
LAST = ROWS - 1


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    number: Field[int]
    note: Field[str]


THING = TypeId("entity", "Thing")


def note(number: int) -> str:
    """It does not compress."""
    return hashlib.blake2b(str(number).encode(), digest_size=8).hexdigest()


def things(*numbers: int, extra: str = "") -> pa.Table:
    keys, notes = [f"k{n:07d}" for n in numbers], [note(n) + extra for n in numbers]
    return pa.table({"id": keys, "number": list(numbers), "note": notes})


@pytest.fixture
def bucket(ministack: S3Server) -> str:
    name = f"pieces-{Ambient.system().ids.unique()}"
    ministack.create_bucket(name)
    return name


async def test_a_lookup_in_a_large_file_fetches_its_footer_and_the_row_groups_that_can_hold_the_key(
    ministack: S3Server, bucket: str
) -> None:
    async with FaultProxy(ministack.endpoint) as proxy:
        address = f"s3://{bucket}?endpoint={proxy.endpoint}"
        chosen = settings(ministack).model_copy(update={"ontology": OntologySection(compaction="off")})
        async with holdfast.open(address, settings=chosen) as hf, hf.ontology(Thing) as onto:
            for table in (things(*range(ROWS)), things(5, LAST, extra="!"), things(9, extra="?")):
                onto.ensure(table, Thing)
                await onto.commit()
        async with holdfast.open(address, settings=chosen) as hf:
            (made,) = await Compactor(hf.store, hf.ambient, whole=True).compact(THING)
            assert made.size > FROM_BYTES
            assert made.entry.path.startswith(layout.SNAPSHOTS)

            def received() -> int:
                return sum(tally.received_bytes for tally in hf.store.usage.tallies.values())

            async with hf.ontology(Thing) as onto:
                query = onto.query(Thing)
                proxy.counts.clear()
                before = received()
                wanted = ROW_GROUP + 17
                assert (await query.where(Thing.id == f"k{wanted:07d}").one()).note == note(wanted)
                # head, manifest, index; the footer, one group of the first commit, and the last, which has the second
                assert proxy.counts.as_dict()["served"] == {"get 200": 3, "range 206": 3}
                assert received() - before < TAIL_BYTES + made.size // 3
                for number, ranges in ((wanted, 0), (ROW_GROUP + 99, 0), (5, 2), (LAST, 0), (9, 0)):
                    proxy.counts.clear()
                    found = await query.where(Thing.id == f"k{number:07d}").one()
                    assert found.note == note(number) + {5: "!", LAST: "!", 9: "?"}.get(number, "")
                    served = {"get 304": 1} | ({"range 206": ranges} if ranges else {})
                    if number == 9:  # which is in the file of the head, too
                        served["get 200"] = 1
                    assert proxy.counts.as_dict()["served"] == served
                proxy.counts.clear()
                assert await query.where(Thing.id == f"k{9:07d}").as_of(2).count() == 1
                assert proxy.counts.as_dict()["served"] == {"get 304": 1}
                assert await query.count() == ROWS, "for which the whole file is fetched"
                proxy.counts.clear()
                assert await query.where(Thing.id == f"k{2 * ROW_GROUP + 5:07d}").count() == 1
                assert proxy.counts.as_dict()["served"] == {"get 304": 1}
            async with hf.ontology(Thing) as onto:
                proxy.counts.clear()
                some = await onto.query(Thing).where(Thing.number.between(3 * ROW_GROUP - 2, 3 * ROW_GROUP - 1)).all()
                assert [one.number for one in some] == [3 * ROW_GROUP - 2, 3 * ROW_GROUP - 1]
                # the head may hide rows of it; of the snapshot the footer, the group, and the last
                assert proxy.counts.as_dict()["served"] == {"get 200": 4, "range 206": 3}
            async with hf.ontology(Thing) as onto:
                for group in range(PIECES + 1):
                    number = min(group * ROW_GROUP + 1, ROWS - 2)
                    assert await onto.query(Thing).where(Thing.id == f"k{number:07d}").count() == 1
                proxy.counts.clear()
                assert await onto.query(Thing).where(Thing.id == f"k{2 * ROW_GROUP + 5:07d}").count() == 1
                assert proxy.counts.as_dict()["served"] == {"get 304": 1}, "it is here by now"
