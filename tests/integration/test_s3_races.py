"""Exactly one writer wins, on a real server, among tasks and among processes.

Bare, a race may end without a winner where the server answers 409 (Ceph does, ministack never), and never with two.
With the production stack above it there is always exactly one.
"""

import asyncio
from functools import reduce
from operator import add

import pytest

from tests.integration.racers import Report, count_up, counted, in_processes, race
from tests.integration.servers import S3Server

KEYS = [f"race/{number:02}" for number in range(20)]
TASKS = 16

create_or_update = pytest.mark.parametrize("update", [False, True], ids=["create", "if-match"])


def prepare(server: S3Server, bucket: str, *, update: bool) -> None:
    for key in KEYS if update else ():
        server.put(bucket, key, b"at first")


@create_or_update
def test_bare_there_are_never_two_winners(s3_server: S3Server, bucket: str, update: bool) -> None:
    prepare(s3_server, bucket, update=update)
    report = race(s3_server.target(bucket), KEYS, tasks=TASKS, update=update, settle=False)
    assert len(report.won) == len(set(report.won))
    assert len(report.won) + report.lost + report.contended == len(KEYS) * TASKS
    assert report.contended > 0 or report.won == KEYS


@create_or_update
def test_two_processes_have_exactly_one_winner(s3_server: S3Server, bucket: str, update: bool) -> None:
    prepare(s3_server, bucket, update=update)
    target = s3_server.target(bucket)
    reports = in_processes(2, race, target, KEYS, tasks=TASKS // 2, update=update, settle=True, processes=2)
    total: Report = reduce(add, reports)
    assert sorted(total.won) == KEYS
    assert (total.lost, total.contended) == (len(KEYS) * (TASKS - 1), 0)


def test_counters_of_two_processes_are_exact(s3_server: S3Server, bucket: str) -> None:
    target = s3_server.target(bucket)
    done = in_processes(2, count_up, target, "counter", tasks=4, edits=10, processes=2)
    assert done == [40, 40]
    assert asyncio.run(counted(target, "counter")) == 80
