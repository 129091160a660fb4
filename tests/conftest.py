"""Shared by all tests: async tests, hypothesis profiles, and the check that a test leaves nothing behind."""

import asyncio
import atexit
import gc
import inspect
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

from tests.leftovers import Snapshot

# `make test` tries the same examples every time; `make soak` looks for new ones.
settings.register_profile("test", derandomize=True, deadline=None, database=None, max_examples=50, print_blob=True)
settings.register_profile("soak", deadline=None, database=None, max_examples=2_000, print_blob=True)
settings.load_profile(os.environ.get("HOLDFAST_HYPOTHESIS", "test"))
# Hypothesis keeps notes on the source it has seen, some of them before the first fixture runs.
_hypothesis_home = tempfile.TemporaryDirectory(prefix="hypothesis-")
atexit.register(_hypothesis_home.cleanup)
set_hypothesis_home_dir(_hypothesis_home.name)
# A shell without job control starts background jobs deaf to Ctrl-C, and their children inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = ("tests/spark/", "tests/integration/", "tests/test_", "tests/unit/cli/", "tests/unit/bench/")


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]  # as above
    """Tests run side by side, those of one module in one process, so that what they share is made once; those of Spark
    all in one, so that one session serves them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSpark:
    config.option.loadscopereorder = False  # but as below
    return OneSpark(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first, or one process would be busy with them when the other has nothing left to do."""
    items.sort(key=lambda item: next((n for n, room in enumerate(LONG) if item.nodeid.startswith(room)), len(LONG)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay to the end: nobody need look through them for garbage."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """``async def test_...`` needs no marker: each runs in a loop of its own."""
    function = pyfuncitem.obj
    property_test = getattr(function, "hypothesis", None)
    if property_test is not None and inspect.iscoroutinefunction(property_test.inner_test):
        property_test.inner_test = _in_a_loop(property_test.inner_test)
        return None
    if not inspect.iscoroutinefunction(function):
        return None
    wanted = inspect.signature(function).parameters
    asyncio.run(function(**{name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}))
    return True


def _in_a_loop(function: Callable[..., Any]) -> Callable[..., None]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(function(*args, **kwargs))

    return run


@pytest.fixture(scope="session", autouse=True)
def private_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever uses ``tempfile``, here or in a subprocess, does so below the folder that pytest removes."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    yield
    os.environ.pop("TMPDIR")
    if before[0] is not None:
        os.environ["TMPDIR"] = before[0]
    tempfile.tempdir = before[1]


@pytest.fixture(autouse=True)
def leaves_nothing_behind(private_temporary_folder: None) -> Iterator[None]:
    before = Snapshot()
    yield
    if left := before.leftovers():
        pytest.fail("left behind: " + "; ".join(left))


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings and credentials must not decide a test."""
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "AWS_")) and not name.startswith(("HOLDFAST_HYPOTHESIS", "HOLDFAST_CEPH")):
            monkeypatch.delenv(name)
