"""An agent at work without a network: what it cuts, what it drops, what it says."""

import random
import subprocess
import sys
from pathlib import Path

from holdfast.base.clock import SystemClock
from holdfast.base.config import AgentSection, AlertRule, LogSource
from holdfast.base.ids import Ambient
from holdfast.telemetry.agent.agent import Agent
from holdfast.telemetry.agent.queue import FILE, FORMAT, Queue
from holdfast.telemetry.agent.sender import Answer, Conflict, Denied, Taken
from holdfast.telemetry.database import Database
from holdfast.telemetry.frame import decode
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Alert, Counter, Log, Record, State

AMBIENT = Ambient(SystemClock(), random.Random(3))


class Collector:
    """Answers as the test says, and keeps what it took; a conflict stays one, in whatever order batches come."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.records: list[Record] = []
        self.numbers: list[int] = []
        self.conflicts: dict[BatchIdentity, Answer] = {}

    async def post(self, route: int, identity: BatchIdentity, frame: bytes) -> Answer:
        if identity in self.conflicts:
            return self.conflicts[identity]
        answer = self.answers.pop(0) if self.answers else Taken(False)
        if isinstance(answer, Conflict):
            self.conflicts[identity] = answer
        if isinstance(answer, Taken):
            self.records += [each.record for each in decode(frame).records()]
            self.numbers += [each.seq for each in decode(frame).records()]
        return answer


class Desk:
    def __init__(self, root: Path, collector: Collector, **section: object) -> None:
        self.root = root
        self.collector = collector
        self.section = AgentSection.model_validate({"batch_ms": 0, "drain_ms": 5_000, "host": False, **section})
        self.spoken: list[str] = []

    async def agent(self, max_bytes: int = 1 << 20) -> Agent:
        self.root.mkdir(exist_ok=True)
        queue = Queue(Database(self.root / FILE, FORMAT, max_bytes=max_bytes), "web-1", AMBIENT)
        await queue.load()
        return Agent(
            queue,
            self.collector,
            AMBIENT,
            self.section,
            self.root,
            collectors=("http://one",),
            notify=self.spoken.append,
        )


async def test_once_measures_sends_and_ends(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Collector(), host=True)
    agent = await desk.agent()
    assert await agent.once()
    names = {getattr(record, "name", "") for record in desk.collector.records}
    assert {"lmagent_up", "node_load1", "lmagent_queue_bytes"} <= names
    assert agent.queue.waiting_records == 0


async def test_dropped_records_are_counted_and_leave_no_gap(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "q", Collector(), logs=[{"path": str(tmp_path / "app.log"), "from_start": True}])
    agent = await desk.agent(max_bytes=40_000)
    while not desk.spoken:
        await agent.round()
    (tmp_path / "app.log").write_text("".join(f"line {number}\n" for number in range(20)))
    await agent.round()
    dropped = agent.queue.state["dropped_metrics"]
    assert dropped > 0
    again = await desk.agent(max_bytes=1 << 20)
    assert await again.once()
    counters = [record for record in desk.collector.records if isinstance(record, Counter)]
    totals = [record.value for record in counters if record.name == "lmagent_dropped_records_total"]
    assert max(totals) == dropped
    logs = [record.message for record in desk.collector.records if isinstance(record, Log)]
    assert logs == [f"line {number}" for number in range(20)]
    assert desk.collector.numbers == list(range(len(desk.collector.numbers)))


async def test_a_parked_batch_raises_an_alert_and_the_rest_goes_on(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Collector(Conflict("409 other bytes")))
    agent = await desk.agent()
    assert await agent.once()
    assert "is parked: identity_conflict" in desk.spoken[0]
    parked = await agent.queue.parked.all()
    await agent.round()
    agent = await desk.agent()
    assert await agent.once()
    (alert,) = [record for record in desk.collector.records if isinstance(record, Alert)]
    assert (alert.name, alert.labels["reason"]) == ("lmagent_batch_parked", "identity_conflict")
    assert await agent.queue.parked.all() == parked


async def test_a_denied_agent_keeps_its_batches_and_reports_it_once(tmp_path: Path) -> None:
    refusals = [Denied("unauthenticated", "401 wrong token")] * 1_000
    desk = Desk(tmp_path, Collector(*refusals), drain_ms=300)
    agent = await desk.agent()
    assert not await agent.once()
    assert desk.spoken == ["http://one does not take batches (unauthenticated): 401 wrong token"]
    assert agent.queue.waiting_records > 0
    allowed = Desk(tmp_path, Collector())
    assert await (await allowed.agent()).once()
    assert allowed.collector.numbers == list(range(len(allowed.collector.numbers)))


async def test_rules_and_logs_of_the_settings_are_used(tmp_path: Path) -> None:
    rule = AlertRule(name="any", metric="lmagent_queue_bytes", above=-1, message="always")
    source = LogSource(path=str(tmp_path / "app.log"), from_start=True)
    (tmp_path / "app.log").write_text("hello\n")
    desk = Desk(tmp_path / "q", Collector(), rules=[rule], logs=[source])
    assert await (await desk.agent()).once()
    assert [record.message for record in desk.collector.records if isinstance(record, Log)] == ["hello"]
    (alert,) = [record for record in desk.collector.records if isinstance(record, Alert)]
    assert (alert.name, alert.state, alert.message) == ("any", State.FIRING, "always")
    assert await (await desk.agent()).once()
    assert len([record for record in desk.collector.records if isinstance(record, Alert)]) == 1


def test_an_agent_does_not_import_large_libraries() -> None:
    """Arrow imports pandas as soon as it is handed a list, where pandas is installed."""
    program = (
        "import sys; import holdfast.telemetry.agent.agent;"
        "from holdfast.telemetry.records import Alert, Log, State;"
        "from holdfast.telemetry.frame import encode, pack;"
        "encode(pack('a', 'b', [Log('line', 1), Alert('name', State.FIRING, 1)], seq_start=0));"
        "print([name for name in ('pandas', 'duckdb', 'fastapi', 'obstore') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"
