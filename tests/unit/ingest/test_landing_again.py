"""What lands and cannot leave the disk, or has no place in lists: nothing is written without end, and others land."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.ingest import layout
from holdfast.ingest.gathering import manifests_in
from holdfast.ingest.landing import Landed
from holdfast.ingest.spool import open_spool
from holdfast.objects.store import CREATE
from holdfast.sim.ingest_kit import submission
from tests.unit.ingest.spool_desk import SpoolDesk

ROUNDS = 5


@pytest.mark.parametrize("what", ["notes", "files"])
async def test_a_disk_that_lets_nothing_go_is_no_reason_to_list_a_batch_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        for number in range(3):
            await collector.accept(submission(number))

        async def refused(*_: Any) -> None:
            raise Unavailable("the disk is read-only")

        with monkeypatch.context() as broken:
            broken.setattr(spool._notes, "add", refused if what == "notes" else spool._notes.add)
            broken.setattr(spool._store, "delete_many", refused)
            for _ in range(ROUNDS):
                desk.watch.advance(seconds=1)
                with pytest.raises(HoldfastError, match="read-only"):
                    await collector.land()
        assert len(spool) == 3
        assert sum(key.startswith(layout.GATHERINGS) for key in desk.shelf.objects) == 1
        assert await collector.land() == Landed(3, 0, 0, 0)
        await spool.keep_reserve()
        await collector.accept(submission(9))
        assert await collector.land() == Landed(1, 0, 0, 0)  # which is listed, as ever
        assert sum(key.startswith(layout.ACCEPTED_BY_TIME) for key in desk.shelf.objects) == 1


async def test_a_manifest_without_a_possible_time_keeps_no_other_batch_from_landing(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        for number in range(4):
            await collector.accept(submission(number))
        odd = submission(2).manifest(
            accepted_at_unix_ns=10**21, collector_id="somebody", authority_id="a", write_id="w" * 8
        )
        await desk.store().put(odd.key, odd.encode(), CREATE)
        assert await collector.land() == Landed(4, 0, 0, 0)
        assert len(spool) == 0
        [key] = [key for key in desk.shelf.objects if key.startswith(layout.GATHERINGS)]
        assert len(manifests_in(await desk.store().get(key))) == 3
