"""``holdfast doctor``: the table, the exit code, the certificate, and one line for what is not the store's fault."""

import asyncio
import json
import re
from collections.abc import Callable

import pytest

from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.cli.doctor import Plan, run_doctor
from holdfast.cli.main import run
from holdfast.objects.conformance.certificate import CERTIFICATE_KEY, read_certificate
from holdfast.objects.conformance.laws import LAWS, Bench, Effort, Law, Violation
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.open import _shelves
from holdfast.objects.place import Place
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec
from tests.fakes.stores import FAULTY, SharedMemoryStore, over_one_shelf
from tests.unit.cli.desk import Streams

QUICK = Effort(races=5, rounds=4, keys=20, large_bytes=1_000)
SPEC = StoreSpec("memory", "patient", retry=RetryPolicy(attempts=3, base_ms=0, max_ms=1))
Capture = pytest.CaptureFixture[str]


class Desk(Streams):
    def doctor(self, factory: Callable[[], Store], plan: Plan | None = None) -> None:
        asyncio.run(run_doctor(self.out, SPEC, plan or Plan(QUICK), connect=lambda _: factory()))


def test_a_good_store_exits_0_with_a_table_of_all_laws(capsys: Capture) -> None:
    assert run(["doctor", "memory:", "--rounds", "2", "--races", "3", "--keys", "10"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split() == ["law", "verdict", "figure", "a", "failure", "would", "mean"]
    for law, line in zip(LAWS, lines[1:], strict=False):
        assert line.split()[:2] == [law.name, "kept"]
        assert line.endswith(law.breach)
        assert ("overlapping" in line) == law.races
    assert "no violation found on memory: with 3 writers at once" in shown.out
    assert "weak evidence for create-exclusive: 0 overlapping writes of 6 wanted" in shown.out
    assert "on S3 about $0.00" in shown.out
    assert shown.err == ""


def test_a_faulty_store_is_refused_and_its_laws_are_named() -> None:
    new, breaks = FAULTY["ignores conditions"]
    people, program = Desk(), Desk(as_json=True)
    for desk in (people, program):
        with pytest.raises(HoldfastError, match=f"broke {len(breaks)} of {len(LAWS)} laws") as caught:
            desk.doctor(new())
        assert caught.value.exit_code == 1
        assert all(name in str(caught.value) for name in breaks)
    shown = {line.split()[0]: line.split()[1] for line in people.stdout.getvalue().splitlines()[1 : len(LAWS) + 1]}
    assert {name for name, verdict in shown.items() if verdict == "broken"} == breaks
    assert "no violation" not in people.stdout.getvalue()
    report = json.loads(program.stdout.getvalue())
    assert (report["ok"], set(report["broken"])) == (False, breaks)


def test_a_law_that_could_not_be_judged_is_no_violation_and_no_success() -> None:
    async def broken(bench: Bench) -> str:
        raise Violation("two winners")

    async def full(bench: Bench) -> str:
        raise Unavailable("no space left", remedy="make room")

    desk = Desk()
    with pytest.raises(Unavailable, match="1 of 2 laws could not be judged; full: no space left") as caught:
        desk.doctor(over_one_shelf(SharedMemoryStore), Plan(QUICK, [Law("full", "", "", full), LAWS[0]]))
    assert (caught.value.exit_code, caught.value.remedy) == (5, "make room")
    lines = desk.stdout.getvalue().splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["full", "unjudged"], ["round-trip", "kept"]]
    with pytest.raises(HoldfastError, match="broke 1 of 2 laws: first"):  # which counts before the other
        Desk().doctor(
            over_one_shelf(SharedMemoryStore),
            Plan(QUICK, [Law("first", "", "", broken), Law("full", "", "", full)]),
        )


def test_the_report_is_one_document(capsys: Capture) -> None:
    assert run(["doctor", "memory:", "--json", "--law", "ranges", "--law", "round-trip"]) == 0
    shown = capsys.readouterr()
    (line,) = shown.out.splitlines()
    report = json.loads(line)
    assert shown.err == ""
    assert (report["ok"], report["broken"], report["certificate"], report["leftovers"]) == (True, [], None, None)
    assert [law["law"] for law in report["laws"]] == ["round-trip", "ranges"]
    assert report["laws"][1]["figure"] == "9 ranges"
    # Probe: two gets, a put, a delete. Laws: 3 x (get, put, get, head, delete, get), 2 x put, 9 x range. Clean-up:
    # a bulk delete and two listings.
    assert report["requests"] == {"get": 11, "put": 6, "delete": 5, "head": 3, "range": 9, "list": 2}
    assert report["dollars"] == round((6 + 2) * 5e-6 + (11 + 3 + 9) * 4e-7, 6)
    assert (report["store"], report["races"], report["rounds"], report["keys"]) == ("memory:", 8, 125, 1100)


class TestCertify:
    def test_a_certificate_is_left_when_no_violation_was_found(self) -> None:
        shelf, desk = Shelf(), Desk()
        desk.doctor(lambda: SharedMemoryStore(shelf), Plan(Effort(races=9), certify=True))
        assert "certificate written: meta/certificate.json" in desk.stdout.getvalue()
        certificate = asyncio.run(read_certificate(MemoryStore(shelf)))
        assert certificate is not None
        assert certificate.covers(Place.of(SPEC))
        assert (certificate.races, certificate.rounds, certificate.keys) == (9, 125, 1_100)
        assert [law.name for law in certificate.laws] == [law.name for law in LAWS]
        assert set(shelf.objects) == {CERTIFICATE_KEY}

    def test_none_is_left_where_no_writes_overlap(self, capsys: Capture) -> None:
        """A store in memory answers a write before the next one begins, so its races show nothing."""
        assert run(["doctor", "memory:alone", "--certify", "--json"]) == 5
        shown = capsys.readouterr()
        error = json.loads(shown.err)["error"]
        assert "4 of 16 laws could not be judged for a certificate; create-exclusive: 0 overlapping" in error["message"]
        assert "a memory store cannot be certified" in error["remedy"]
        report = json.loads(shown.out)
        assert (report["ok"], report["broken"], report["unjudged"]) == (False, [], [])
        assert report["weak"] == [law.name for law in LAWS if law.races]
        assert _shelves["alone"].objects == {}

    def test_none_is_left_on_a_faulty_store(self) -> None:
        factory = FAULTY["lists stale"][0]()
        with pytest.raises(HoldfastError):
            Desk().doctor(factory, Plan(QUICK, certify=True))
        assert CERTIFICATE_KEY not in factory().shelf.objects


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("nowhere", "error: store URI 'nowhere' has no known scheme"),
        ("/data", "error: store URI '/data' has no known scheme\nhint: for a directory write file:/data"),
        ("s3://", "error: store URI 's3://' needs a bucket"),
        ("file:/proc/x", "hint: give the store a directory on a disk, such as file:./data"),
        ("memory: --law listing-compete", "hint: did you mean listing-complete?"),
        ("memory: --law xyz", "error: --law: unknown value 'xyz'\nhint: use one of: "),
        ("memory: --races 1", "'--races'"),
        ("memory: --keys many", "'--keys'"),
        ("memory:hasty --certify --law ranges", "error: a certificate needs every law\n"),
        (
            "memory:hasty --certify --races 3 --keys 10",
            "error: --certify needs at least --races 8 --rounds 125 --keys 1100, got --races 3, --keys 10\n",
        ),
    ],
)
def test_a_mistake_is_one_line_and_a_hint_before_anything_is_run(arguments: str, error: str, capsys: Capture) -> None:
    assert run(["doctor", *arguments.split()]) == 2
    shown = capsys.readouterr()
    assert error in shown.err
    assert shown.out == ""
    assert len(shown.err.splitlines()) <= 2
    assert "hasty" not in _shelves


def test_objects_that_could_not_be_removed_are_named() -> None:
    shelf = Shelf()
    gone = False

    class Leaves(SharedMemoryStore):
        def list(self, prefix="", *, after=None, delimiter=False):  # type: ignore[no-untyped-def]  # the port's signature
            if gone:
                raise Unavailable("connection reset")
            return super().list(prefix, after=after, delimiter=delimiter)

    async def writes_and_is_cut_off(bench: Bench) -> str:
        nonlocal gone
        await bench.client().put("left-behind", b"x")
        gone = True
        return "done"

    law = Law("cut-off", "promise", "breach", writes_and_is_cut_off)
    people, program = Desk(), Desk(as_json=True)
    people.doctor(lambda: Leaves(shelf), Plan(QUICK, [law]))
    (key,) = shelf.objects
    where = f"delete the objects under {key.partition('/')[0]}/ in memory:patient"
    assert people.stderr.getvalue() == f"warning: could not clean up: connection reset; {where}\n"
    gone = False
    program.doctor(lambda: Leaves(shelf), Plan(QUICK, [law]))
    assert json.loads(program.stdout.getvalue())["leftovers"] == "connection reset"


def test_an_interrupted_examination_says_that_it_cleans_up_and_does() -> None:
    shelf, desk = Shelf(), Desk()

    async def interrupted() -> None:
        started = asyncio.Event()

        async def endless(bench: Bench) -> str:
            await bench.client().put("left-behind", b"x")
            started.set()
            await asyncio.sleep(3600)
            return "not reached"

        plan = Plan(QUICK, [Law("endless", "promise", "breach", endless)])
        task = asyncio.ensure_future(run_doctor(desk.out, SPEC, plan, connect=lambda _: SharedMemoryStore(shelf)))
        await started.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())
    assert "stopping: cleaning up under holdfast-doctor-" in desk.stderr.getvalue()
    assert desk.stdout.getvalue() == ""
    assert shelf.objects == {}


@pytest.mark.parametrize(("as_json", "on_terminal"), [(False, True), (True, True), (False, False)])
def test_only_a_terminal_shows_the_law_that_runs(as_json: bool, on_terminal: bool) -> None:
    desk = Desk(as_json=as_json, on_terminal=on_terminal)
    desk.doctor(over_one_shelf(SharedMemoryStore))
    seen = re.sub(r"\s+", " ", desk.stderr.getvalue())
    if on_terminal and not as_json:
        assert f"{LAWS[0].name} 0/{len(LAWS)} laws, " in seen
    else:
        assert seen == ""
