"""What lands and cannot leave the disk, or has no place in lists: nothing is written without end, and others land."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.landing import GROUP, Landed
from holdfast.telemetry.accept.spool import FILE, open_spool
from tests.unit.telemetry.accept.spool_desk import SpoolDesk

ROUNDS = 5


class Unrecorded(Layer):
    """A store that takes no conflicts."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.puts: list[str] = []
        self.refuses = True

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        self.puts.append(key)
        if self.refuses and key.startswith(layout.CONFLICTS):
            raise Unavailable(f"{key}: 503")
        return await super().put(key, body, mode)


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
            sizes = set()
            for _ in range(ROUNDS):
                desk.watch.advance(seconds=1)
                with pytest.raises(HoldfastError, match="read-only"):
                    await collector.land()
                sizes.add((tmp_path / FILE).stat().st_size + (tmp_path / f"{FILE}-wal").stat().st_size)
            assert len(sizes) == 1  # nor are notes of it taken again
        assert len(spool) == 3
        assert sum(key.startswith(layout.ACCEPTED_BY_TIME) for key in desk.shelf.objects) == 3
        assert await collector.land() == Landed(3, 0, 0, 0)
        await spool.keep_reserve()
        await collector.accept(submission(9))
        assert await collector.land() == Landed(1, 0, 0, 0)
        assert sum(key.startswith(layout.ACCEPTED_BY_TIME) for key in desk.shelf.objects) == 4


async def test_a_conflict_that_cannot_be_put_on_record_holds_no_other_batch_up(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        await desk.collector().accept(submission(0, 1))
        collector = desk.spooler(spool)
        collector.lander.store = store = Unrecorded(collector.lander.store)
        for number in range(3 * GROUP):
            await collector.accept(submission(number))
        assert await collector.land() == Landed(batches=3 * GROUP - 1, stuck=1)
        assert len(spool) == 1
        await collector.accept(submission(1_000))
        store.puts.clear()
        await collector._round()
        assert collector.problem == "1 file cannot land: the log says why"
        assert store.puts[-1].startswith(layout.CONFLICTS)  # the new one was there, and listed, before
        assert len(spool) == 1
        store.refuses = False
        assert await collector.land() == Landed(conflicts=1)
        await collector._round()
        assert [len(spool), collector.problem] == [0, None]


async def test_bytes_that_were_refused_here_stay_until_that_is_on_record(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        collector.lander.store = store = Unrecorded(collector.lander.store)
        await collector.accept(submission(0))
        await collector.accept(submission(0, 1))
        assert await collector.land() == Landed(batches=1, stuck=1)
        await collector._round()
        assert collector.problem is not None
        store.refuses = False
        assert await collector.land() == Landed(conflicts=1)
        assert await collector.land() == Landed()
