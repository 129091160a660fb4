"""Large files of a bucket: the footer, and the row groups and columns that matter, counted at the server."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pyarrow as pa
import pytest

import holdfast
from holdfast.base.config import OntologySection, Settings
from holdfast.base.ids import Ambient
from holdfast.ontology import Entity, Field, count
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.remote_parquet import RANGES, TAIL_BYTES, WHOLE_BYTES
from holdfast.ontology.maintain.compact import Compacted, Compactor
from holdfast.ontology.types.refs import TypeId
from holdfast.platform.open import Holdfast
from tests.fakes.fault_proxy import FaultProxy
from tests.integration.proxy_kit import settings
from tests.integration.servers import S3Server

ROW_GROUP = 65_536
"""Smaller than in production, so that the test is fast."""
ROWS = 4 * ROW_GROUP + 5_000
LAST = ROWS - 1


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    number: Field[int]
    remark: Field[str]
    """Behind the number, and most of the file."""


THING = TypeId("entity", "Thing")


def note(number: int) -> str:
    """It does not compress."""
    return hashlib.blake2b(str(number).encode(), digest_size=8).hexdigest()


def things(*numbers: int, extra: str = "") -> pa.Table:
    keys, notes = [f"k{n:07d}" for n in numbers], [note(n) + extra for n in numbers]
    return pa.table({"id": keys, "number": list(numbers), "remark": notes})


class Stocked(NamedTuple):
    """A first load, two commits, and a snapshot of all but the last; nothing was compacted by itself."""

    bucket: str
    settings: Settings
    made: Compacted

    @asynccontextmanager
    async def opened(self, server: S3Server) -> AsyncIterator[tuple[Holdfast, FaultProxy]]:
        """Through a proxy, which counts."""
        async with FaultProxy(server.endpoint) as proxy:
            uri = f"s3://{self.bucket}?endpoint={proxy.endpoint}"
            async with holdfast.open(uri, settings=self.settings) as hf:
                yield hf, proxy


@pytest.fixture(scope="module")
def stocked(ministack: S3Server) -> Stocked:
    """Nothing is written to it any more."""
    name = f"pieces-{Ambient.system().ids.unique()}"
    ministack.create_bucket(name)
    chosen = settings(ministack).model_copy(update={"ontology": OntologySection(compaction="off")})

    async def stock() -> Compacted:
        async with holdfast.open(f"s3://{name}?endpoint={ministack.endpoint}", settings=chosen) as hf:
            async with hf.ontology(Thing) as onto:
                for table in (things(*range(ROWS)), things(5, LAST, extra="!"), things(9, extra="?")):
                    onto.ensure(table, Thing)
                    await onto.commit()
            (made,) = await Compactor(hf.store, hf.ambient, whole=True).compact(THING)
            return made

    with pytest.MonkeyPatch.context() as patch:
        for place in ("maintain.merge", "format.data.rows"):
            patch.setattr(f"holdfast.ontology.{place}.ROW_GROUP", ROW_GROUP)
        return Stocked(name, chosen, asyncio.run(stock()))


async def test_a_question_about_columns_of_a_large_file_fetches_no_others(
    ministack: S3Server, stocked: Stocked
) -> None:
    async with stocked.opened(ministack) as (hf, proxy):
        body = (await hf.store.get(stocked.made.entry.path)).body

        def ranges() -> int:
            tallies = hf.store.usage.tallies.items()
            return sum(tally.received_bytes for (verb, _), tally in tallies if verb in ("range", "part"))

        async with hf.ontology(Thing) as onto:
            query = onto.query(Thing)
            proxy.counts.clear()
            before = ranges()
            assert await query.agg(most=Thing.number.max()) == {"most": LAST}
            # head, manifest, index, the file of the head; the footer, and the column in the row groups
            assert proxy.counts.by_answer() == {"get 200": 4, "range 206": 1 + RANGES}
            assert ranges() - before < TAIL_BYTES + len(body) / 2
            for again in (query.where(Thing.number > 10).count(), query.group_by(Thing.number).agg(n=count())):
                proxy.counts.clear()
                await again
                assert proxy.counts.by_answer() == {"get 304": 1}, "it is here by now"
            proxy.counts.clear()
            assert len(await query.limit(3).all()) == 3
            assert ranges() - before <= TAIL_BYTES + len(body), "the rest of it"
            assert proxy.counts.by_answer() == {"get 304": 1, "range 206": 1}
            proxy.counts.clear()
            assert await query.where(Thing.id == f"k{ROW_GROUP + 17:07d}").count() == 1
            assert proxy.counts.by_answer() == {"get 304": 1}


async def test_a_lookup_in_a_large_file_fetches_its_footer_and_the_row_groups_that_can_hold_the_key(
    ministack: S3Server, stocked: Stocked
) -> None:
    async with stocked.opened(ministack) as (hf, proxy):
        made = stocked.made
        assert made.size > WHOLE_BYTES
        assert made.entry.path.startswith(layout.SNAPSHOTS)

        def received() -> int:
            return sum(tally.received_bytes for tally in hf.store.usage.tallies.values())

        async with hf.ontology(Thing) as onto:
            query = onto.query(Thing)
            proxy.counts.clear()
            before = received()
            wanted = ROW_GROUP + 17
            assert (await query.where(Thing.id == f"k{wanted:07d}").one()).remark == note(wanted)
            # head, manifest, index; the footer, one group of the first commit, and the last, which has the second
            assert proxy.counts.by_answer() == {"get 200": 3, "range 206": 3}
            assert received() - before < TAIL_BYTES + made.size // 3
            for number, ranges in ((wanted, 0), (ROW_GROUP + 99, 0), (5, 1), (LAST, 0), (9, 0)):
                proxy.counts.clear()
                found = await query.where(Thing.id == f"k{number:07d}").one()
                assert found.remark == note(number) + {5: "!", LAST: "!", 9: "?"}.get(number, "")
                served = {"get 304": 1} | ({"range 206": ranges} if ranges else {})
                if number == 9:  # which is in the file of the head, too
                    served["get 200"] = 1
                assert proxy.counts.by_answer() == served
            proxy.counts.clear()
            assert await query.where(Thing.id == f"k{9:07d}").as_of(2).count() == 1
            assert proxy.counts.by_answer() == {"get 304": 1}
            assert await query.count() == ROWS
            assert len(await query.limit(1).all()) == 1, "for which the rest of it is fetched, or nearly all"
            proxy.counts.clear()
            assert await query.where(Thing.id == f"k{2 * ROW_GROUP + 5:07d}").count() == 1
            assert proxy.counts.by_answer() == {"get 304": 1}
        async with hf.ontology(Thing) as onto:
            proxy.counts.clear()
            some = await onto.query(Thing).where(Thing.number.between(3 * ROW_GROUP - 2, 3 * ROW_GROUP - 1)).all()
            assert [one.number for one in some] == [3 * ROW_GROUP - 2, 3 * ROW_GROUP - 1]
            # the head may hide rows of it; of the snapshot the footer, the group, and the last
            assert proxy.counts.by_answer() == {"get 200": 4, "range 206": 3}
        async with hf.ontology(Thing) as onto:
            for group in range(5):
                number = min(group * ROW_GROUP + 1, ROWS - 2)
                assert await onto.query(Thing).where(Thing.id == f"k{number:07d}").count() == 1
            proxy.counts.clear()
            assert await onto.query(Thing).where(Thing.id == f"k{2 * ROW_GROUP + 5:07d}").count() == 1
            assert proxy.counts.by_answer() == {"get 304": 1}, "it is here by now"
