"""obstore's threads against forks and the end of a process. Each case is a process of its own."""

import subprocess
import sys
from pathlib import Path

from tests.integration.servers import S3Server

ROOT = Path(__file__).parents[2]

OPEN = """
import asyncio, os, sys
from holdfast.base.errors import HoldfastError
from holdfast.objects.cloud import CloudStore
from holdfast.objects.uri import StoreSpec

def open_store():
    options = (("endpoint", sys.argv[1]),)
    keys = (("access_key_id", sys.argv[3]), ("secret_access_key", sys.argv[4]))
    return CloudStore(StoreSpec("s3", sys.argv[2], "", options, keys), environ={})

def use(store):
    try:
        asyncio.run(written(store))
        return "used"
    except HoldfastError as error:
        return f"{type(error).__name__}: {error} / {error.remedy}"

async def written(store):
    await store.put("k", b"x")
    [page async for page in store.list()]
"""

LOOK = """
store = open_store()
open_files = [os.readlink(entry) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry)]
sockets = [name for name in open_files if name.startswith("socket:")]
print(len(os.listdir("/proc/self/task")), "thread,", len(sockets), "sockets")
print(use(store))
"""

FORK = """
def in_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print(work(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def run(script: str, server: S3Server, bucket: str, *, expect_code: int = 0) -> list[str]:
    arguments = (server.endpoint, bucket, server.access_key, server.secret_key)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (expect_code, "")
    return done.stdout.splitlines()


def test_importing_and_opening_start_no_thread_and_open_no_socket(s3_server: S3Server, bucket: str) -> None:
    assert run(OPEN + LOOK, s3_server, bucket) == ["1 thread, 0 sockets", "used"]


def test_a_store_does_not_cross_a_fork(s3_server: S3Server, bucket: str) -> None:
    script = OPEN + FORK + "store = open_store()\nin_child(lambda: use(store))\nprint(use(store))"
    child, parent = run(script, s3_server, bucket)
    assert child.startswith("Invalid: a cloud store was opened before a fork")
    assert "open a new store from its StoreSpec" in child
    assert parent == "used"


def test_a_child_of_a_process_that_has_used_a_store_gets_an_error(s3_server: S3Server, bucket: str) -> None:
    script = OPEN + FORK + "print(use(open_store()))\nin_child(lambda: use(open_store()))"
    parent, child = run(script, s3_server, bucket)
    assert parent == "used"
    assert child.startswith("Invalid: cloud stores cannot be used in this process: it was forked")
    assert "spawn or forkserver" in child


def test_a_child_may_use_stores_if_its_parent_has_not(s3_server: S3Server, bucket: str) -> None:
    script = OPEN + FORK + "open_store()\nin_child(lambda: use(open_store()))\nprint(use(open_store()))"
    assert run(script, s3_server, bucket) == ["used", "used"]


def test_the_exit_code_is_kept(s3_server: S3Server, bucket: str) -> None:
    """Without care at exit a good part of such processes ends by SIGABRT instead."""
    script = OPEN + "print(use(open_store()))\nsys.exit(6)"
    for _ in range(5):
        assert run(script, s3_server, bucket, expect_code=6) == ["used"]
