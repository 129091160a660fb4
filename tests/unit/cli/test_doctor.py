"""``holdfast doctor``: the table, the exit code, the certificate, and one line for what is not the store's fault."""

import asyncio
import io
import json
import re
from collections.abc import Callable

import pytest

from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.cli.doctor import Plan, run_doctor
from holdfast.cli.main import run
from holdfast.cli.output import Output
from holdfast.objects.conformance.certificate import CERTIFICATE_KEY, read_certificate
from holdfast.objects.conformance.laws import LAWS, Bench, Effort, Law, Violation
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.open import _shelves
from holdfast.objects.place import Place
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.objects.uri import StoreSpec
from tests.fakes.stores import FAULTY, SharedMemoryStore, over_one_shelf

QUICK = Effort(races=5, rounds=4, keys=20, large_bytes=1_000)
SPEC = StoreSpec("memory", "patient", retry=RetryPolicy(attempts=3, base_ms=0, max_ms=1))
Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Desk:
    """One output with its streams kept."""

    def __init__(self, *, as_json: bool = False, terminal: bool = False) -> None:
        self.stdout = io.StringIO()
        self.stderr: io.StringIO = Terminal() if terminal else io.StringIO()
        self.out = Output(as_json=as_json, stdout=self.stdout, stderr=self.stderr)

    def doctor(self, factory: Callable[[], Store], plan: Plan | None = None) -> None:
        asyncio.run(run_doctor(self.out, SPEC, plan or Plan(QUICK), connect=lambda _: factory()))


class TestVerdict:
    def test_a_good_store_exits_0_with_a_table_of_all_laws(self, capsys: Capture) -> None:
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
        assert "requests (" in shown.out
        assert "on S3 about $0.00" in shown.out
        assert shown.err == ""

    def test_a_faulty_store_is_refused_and_its_laws_are_named(self) -> None:
        new, breaks = FAULTY["ignores conditions"]
        desk = Desk()
        with pytest.raises(HoldfastError) as caught:
            desk.doctor(new())
        assert caught.value.exit_code == 1
        assert all(name in str(caught.value) for name in breaks)
        assert f"broke {len(breaks)} of {len(LAWS)} laws" in str(caught.value)
        shown = {line.split()[0]: line.split()[1] for line in desk.stdout.getvalue().splitlines()[1 : len(LAWS) + 1]}
        assert {name for name, verdict in shown.items() if verdict == "broken"} == breaks
        assert "no violation" not in desk.stdout.getvalue()

    def test_a_law_that_could_not_be_judged_is_no_violation_and_no_success(self) -> None:
        async def full(bench: Bench) -> str:
            raise Unavailable("no space left", remedy="make room")

        desk = Desk()
        with pytest.raises(Unavailable, match="1 of 2 laws could not be judged; full: no space left") as caught:
            desk.doctor(over_one_shelf(SharedMemoryStore), Plan(QUICK, [Law("full", "", "", full), LAWS[0]]))
        assert caught.value.exit_code == 5
        assert caught.value.remedy == "make room"
        assert [line.split()[:2] for line in desk.stdout.getvalue().splitlines()[1:3]] == [
            ["full", "unjudged"],
            ["round-trip", "kept"],
        ]
        assert "no violation" not in desk.stdout.getvalue()


class TestJson:
    def test_the_report_is_one_document(self, capsys: Capture) -> None:
        assert run(["doctor", "memory:", "--json", "--law", "ranges", "--law", "round-trip"]) == 0
        shown = capsys.readouterr()
        (line,) = shown.out.splitlines()
        report = json.loads(line)
        assert shown.err == ""
        assert report["ok"] is True
        assert report["broken"] == []
        assert [law["law"] for law in report["laws"]] == ["round-trip", "ranges"]
        assert {law["verdict"] for law in report["laws"]} == {"kept"}
        assert report["laws"][1]["figure"] == "9 ranges"
        # Probe: two gets, a put, a delete. Laws: 3 x (get, put, get, head, delete, get), 2 x put, 9 x range. Clean-up:
        # a bulk delete and two listings.
        assert report["requests"] == {"get": 11, "put": 6, "delete": 5, "head": 3, "range": 9, "list": 2}
        assert report["dollars"] == round((6 + 2) * 5e-6 + (11 + 3 + 9) * 4e-7, 6)
        assert report["certificate"] is None
        assert report["leftovers"] is None
        assert report["store"] == "memory:"
        assert (report["races"], report["rounds"], report["keys"]) == (8, 125, 1100)

    def test_a_broken_law_stands_in_the_report_and_in_the_error(self) -> None:
        desk = Desk(as_json=True)
        with pytest.raises(HoldfastError):
            desk.doctor(FAULTY["lists stale"][0]())
        report = json.loads(desk.stdout.getvalue())
        assert report["ok"] is False
        assert set(report["broken"]) == FAULTY["lists stale"][1]
        assert [law["figure"] for law in report["laws"] if law["law"] == "listing-complete"] == [
            "20 objects written, 17 listed (3 missing)"
        ]


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
        assert run(["doctor", "memory:alone", "--certify"]) == 5
        shown = capsys.readouterr()
        assert "4 of 16 laws could not be judged for a certificate; create-exclusive: 0 overlapping" in shown.err
        assert "hint: a memory store cannot be certified" in shown.err
        assert "certificate written" not in shown.out
        assert all(f"{law.name} " in shown.out for law in LAWS)
        assert _shelves["alone"].objects == {}
        assert run(["doctor", "memory:alone", "--certify", "--json"]) == 5
        report = json.loads(capsys.readouterr().out)
        assert (report["ok"], report["broken"], report["unjudged"]) == (False, [], [])
        assert report["weak"] == [law.name for law in LAWS if law.races]

    def test_none_is_left_otherwise(self) -> None:
        factory = FAULTY["lists stale"][0]()
        with pytest.raises(HoldfastError):
            Desk().doctor(factory, Plan(QUICK, certify=True))
        assert CERTIFICATE_KEY not in factory().shelf.objects

    def test_too_little_effort_is_refused_before_anything_is_run(self, capsys: Capture) -> None:
        assert run(["doctor", "memory:hasty", "--certify", "--races", "3", "--keys", "10"]) == 2
        assert capsys.readouterr().err == (
            "error: --certify needs at least --races 8 --rounds 125 --keys 1100, got --races 3, --keys 10\n"
            "hint: leave out these options, or --certify\n"
        )
        assert "hasty" not in _shelves

    def test_a_few_laws_are_not_enough(self, capsys: Capture) -> None:
        assert run(["doctor", "memory:", "--certify", "--law", "ranges"]) == 2
        assert capsys.readouterr().err.startswith("error: a certificate needs every law\n")


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "code", "error"),
        [
            (["nowhere"], 2, "error: store URI 'nowhere' has no known scheme"),
            (["/data"], 2, "error: store URI '/data' has no known scheme\nhint: for a directory write file:/data"),
            (["s3://"], 2, "error: store URI 's3://' needs a bucket"),
            (["file:/proc/x"], 2, "hint: give the store a directory on a disk, such as file:./data"),
            (["memory:", "--law", "listing-compete"], 2, "hint: did you mean listing-complete?"),
            (["memory:", "--law", "xyz"], 2, "error: no law is called 'xyz'\nhint: laws: round-trip, "),
            (["memory:", "--races", "1"], 2, "--races"),
            (["memory:", "--rounds", "0"], 2, "--rounds"),
            (["memory:", "--keys", "0"], 2, "--keys"),
        ],
    )
    def test_one_line_and_a_hint(self, arguments: list[str], code: int, error: str, capsys: Capture) -> None:
        assert run(["doctor", *arguments]) == code
        shown = capsys.readouterr()
        assert error in shown.err
        assert shown.out == ""
        assert len(shown.err.splitlines()) <= 2

    def test_what_could_not_be_cleaned_up_is_named(self) -> None:
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

        desk = Desk()
        law = Law("cut-off", "promise", "breach", writes_and_is_cut_off)
        desk.doctor(lambda: Leaves(shelf), Plan(QUICK, [law]))
        (key,) = shelf.objects
        prefix = key.partition("/")[0]
        assert desk.stderr.getvalue() == (
            f"warning: could not clean up: connection reset; delete what is under {prefix}/ in memory:patient\n"
        )

        gone, program = False, Desk(as_json=True)
        program.doctor(lambda: Leaves(shelf), Plan(QUICK, [law]))
        assert json.loads(program.stdout.getvalue())["leftovers"] == "connection reset"


class Dying(SharedMemoryStore):
    """Serves so many requests of the laws, and then none."""

    left = 0

    def _serve(self) -> None:
        Dying.left -= 1
        if Dying.left < 0:
            raise Unavailable("connection refused")

    async def get(self, key: str) -> Object:
        self._serve()
        return await super().get(key)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        self._serve()
        return await super().put(key, body, mode)


class TestTheEndOfTheStore:
    def test_a_broken_law_stays_broken(self) -> None:
        async def broken(bench: Bench) -> str:
            raise Violation("two winners")

        async def ends(bench: Bench) -> str:
            Dying.left = 0
            return str(await bench.client().get("anything"))

        shelf, desk = Shelf(), Desk()
        Dying.left = 1_000
        laws = [Law(name, "promise", "breach", run) for name, run in (("first", broken), ("second", ends))]
        with pytest.raises(HoldfastError, match="broke 1 of 18 laws: first") as caught:
            desk.doctor(lambda: Dying(shelf), Plan(QUICK, [*laws, *LAWS]))
        assert caught.value.exit_code == 1
        lines = desk.stdout.getvalue().splitlines()
        assert re.match(r"first +broken +two winners", lines[1])
        assert re.match(r"second +unjudged +connection refused", lines[2])
        assert re.match(r"round-trip +unjudged +not run", lines[3])


class TestInterruption:
    def test_it_says_that_it_cleans_up_and_does(self) -> None:
        shelf = Shelf()
        desk = Desk()

        async def interrupted() -> None:
            started = asyncio.Event()

            async def endless(bench: Bench) -> str:
                await bench.client().put("left-behind", b"x")
                started.set()
                await asyncio.sleep(3600)
                return "not reached"

            law = Law("endless", "promise", "breach", endless)
            task = asyncio.ensure_future(
                run_doctor(desk.out, SPEC, Plan(QUICK, [law]), connect=lambda _: SharedMemoryStore(shelf))
            )
            await started.wait()
            task.cancel()
            await task

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(interrupted())
        assert "stopping: cleaning up under holdfast-doctor-" in desk.stderr.getvalue()
        assert desk.stdout.getvalue() == ""
        assert shelf.objects == {}


class TestProgress:
    def test_a_terminal_shows_the_laws_as_they_run(self) -> None:
        desk = Desk(terminal=True)
        desk.doctor(over_one_shelf(SharedMemoryStore))
        assert "laws, " in desk.stderr.getvalue()
        assert all(law.name in desk.stderr.getvalue() for law in LAWS)

    @pytest.mark.parametrize(("as_json", "terminal"), [(True, True), (False, False)])
    def test_otherwise_it_is_quiet(self, as_json: bool, terminal: bool) -> None:
        desk = Desk(as_json=as_json, terminal=terminal)
        desk.doctor(over_one_shelf(SharedMemoryStore))
        assert desk.stderr.getvalue() == ""
