"""Shared by all tests: async tests, hypothesis profiles, and the check that a test leaves nothing behind."""

import asyncio
import gc
import inspect
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

from tests.leftovers import Snapshot
from tests.temporary import Temporary
from tests.tidy.tree import ROOT

# `make test` tries the same examples every time; `make soak` looks for new ones.
# How long an example takes depends on what else the machine does, so no health check looks at it.
ALL = settings(deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("test", ALL, derandomize=True, max_examples=20)
settings.register_profile("soak", ALL, max_examples=1_000)
settings.load_profile(os.environ.get("HOLDFAST_HYPOTHESIS", "test"))
# A shell without job control starts background jobs with SIGINT ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

RUN = pytest.StashKey[Temporary]()
# Verifying the byte code of Spark takes a good part of the time in which it starts.
SPARK_SUBMIT_OPTS = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
LONG = (
    *("tests/spark/", "tests/integration/", "tests/test_", "tests/unit/cli/", "tests/unit/bench/"),
    *("tests/sim/", "tests/properties/", "tests/unit/platform/", "tests/unit/ontology/", "tests/unit/pipeline/"),
)


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]  # as above
    """One process runs all tests of a module, so that they share fixtures; one runs all tests of Spark, so that they
    share a session. (``--dist loadgroup`` of pytest-xdist 3.8 has no effect under pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSpark:
    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    return OneSpark(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The main process makes the temporary folder of the run; workers of xdist inherit it."""
    if not hasattr(config, "workerinput"):
        run = config.stash[RUN] = Temporary()
        config.option.basetemp = config.option.basetemp or str(run.tests)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the folder is removed
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SPARK_SUBMIT_OPTS)
    # Hypothesis reads all our source for constants while tests are collected; all processes share this cache of them.
    set_hypothesis_home_dir(ROOT / ".hypothesis")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    run = session.config.stash.get(RUN, None)
    if run is None or session.exitstatus == pytest.ExitCode.INTERRUPTED:
        return
    run.interrupted, run.failed = False, session.testsfailed > 0
    if run.find_leftovers() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    run = config.stash[RUN]
    if run.leftovers:
        terminalreporter.section("left behind by the run", red=True)
        for each in run.leftovers:
            terminalreporter.write_line(each)
    if run.failed:
        terminalreporter.write_line(f"folders of failed tests are kept until the next run: {run.tests}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if (run := config.stash.get(RUN, None)) is not None:
        run.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first: started last, they would keep one process busy while the others have nothing left to do."""
    items.sort(key=lambda item: next((n for n, room in enumerate(LONG) if item.nodeid.startswith(room)), len(LONG)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Tests and the modules they import live until the end, so the garbage collector need not traverse them."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """``async def test_...`` needs no marker: each test runs in its own event loop."""
    function = pyfuncitem.obj
    property_test = getattr(function, "hypothesis", None)
    if property_test is not None and inspect.iscoroutinefunction(property_test.inner_test):
        property_test.inner_test = _in_own_loop(property_test.inner_test)
        return None
    if not inspect.iscoroutinefunction(function):
        return None
    wanted = inspect.signature(function).parameters
    asyncio.run(function(**{name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}))
    return True


def _in_own_loop(function: Callable[..., Any]) -> Callable[..., None]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(function(*args, **kwargs))

    return run


@pytest.fixture(scope="session", autouse=True)
def private_temporary_folder(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Every use of ``tempfile``, here or in a subprocess, is below the folder that pytest removes."""
    folder = tmp_path_factory.mktemp("tmp")
    before = os.environ["TMPDIR"]
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    yield
    os.environ["TMPDIR"] = tempfile.tempdir = before
    left = sorted(each.name for each in folder.iterdir())
    if left and not was_interrupted(request):
        pytest.fail(f"left behind in the temporary folder by shared fixtures: {', '.join(left)}")


@pytest.fixture(autouse=True)
def leaves_nothing_behind(private_temporary_folder: None, request: pytest.FixtureRequest) -> Iterator[None]:
    before = Snapshot()
    yield
    if not was_interrupted(request) and (left := before.leftovers()):
        pytest.fail("left behind: " + "; ".join(left))


def was_interrupted(request: pytest.FixtureRequest) -> bool:
    """An interrupted test is not blamed for what it could not remove."""
    return request.session.exitstatus == pytest.ExitCode.INTERRUPTED


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings and credentials must not decide a test."""
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "AWS_", "AZURE_", "GOOGLE_")) and not name.startswith(
            ("HOLDFAST_HYPOTHESIS", "HOLDFAST_CEPH", "HOLDFAST_AZURITE")
        ):
            monkeypatch.delenv(name)
