"""Types are purged, begun anew and erased from under a process that reads all the while, on real stores.

Every commit writes every guest, with a number that only rises. So an answer has one number for all of them, and no
answer has a lower one than an answer before: an older row in the place of one that was destroyed would show.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.ontology.commit.lock import Open
from holdfast.ontology.maintain import drop, erase
from holdfast.ontology.maintain.verify.verify import verify
from tests.integration.purge_reader import Guest
from tests.integration.run_places import Place

ROOT = Path(__file__).parents[2]
BY: Any = {"turn": Open(), "by": "x", "why": "y"}
GUESTS, COMMITS, LIVES = 6, 4, 2


async def lives(place: Place) -> None:
    number = 0
    async with holdfast.open(place.uri, settings=place.settings) as hf:
        for life in range(LIVES):
            async with hf.ontology(Guest) as onto:
                for _ in range(COMMITS):
                    number += 1
                    onto.ensure([Guest(id=f"g{each}", round=number) for each in range(GUESTS)])
                    await onto.commit()
            if life % 2:
                found = await erase.preview(hf.store, "Guest", "g0")
                await erase.apply(hf.store, hf.ambient, found, found.token, **BY)
            dropping = await drop.preview(hf.store, "Guest", purge=True)
            await drop.apply(hf.store, hf.ambient, dropping, dropping.token, **BY)
        report = await verify(hf.store, deep=True)
        assert report.good, report.findings


@pytest.mark.soak
async def test_a_reader_sees_one_moment_at_a_time(place: Place) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.purge_reader", place.uri],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), **place.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        first = await asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
        await lives(place)
    finally:
        rest, complaints = process.communicate()
    assert process.returncode == 0, complaints
    reported = [json.loads(line) for line in (first + rest).splitlines()]
    assert len(reported) > 1
    highest = 0
    for answer in reported:
        for way in ("latest", "streamed", "fed", "sql"):
            rounds = answer[way]
            assert len(rounds) <= 1, (way, answer)
            assert not rounds or rounds[0] >= highest, (way, answer)
            highest = max([highest, *rounds])
        assert answer["count"][0] in (0, GUESTS - 1, GUESTS), answer
        commits = [commit_id for commit_id, _, erased in answer["history"] if not erased]
        assert commits == sorted(set(commits)), answer
        assert commits == list(range(commits[0], commits[0] + len(commits))) if commits else True, answer
