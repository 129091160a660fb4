"""The demo's whole way, played once without Spark; then somebody tampers with files, and the witness must notice."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from holdfast.base.ids import Ambient
from holdfast.cli.acts import agents, bus, census, count, ontology, pipeline, plain, telemetry
from holdfast.cli.acts.stage import ProofFailed, Stage
from holdfast.ingest.frame import decode, encode, pack
from holdfast.ingest.records import Counter, Gauge, Histogram, Log, Record
from holdfast.objects.uri import StoreSpec


@dataclass(frozen=True)
class Played:
    """A store after the whole way, and what the acts left for later ones."""

    folder: Path
    props: dict[type, object]
    told: dict[str, list[str]]
    figures: dict[str, str]

    def copy(self, folder: Path) -> Stage:
        shutil.copytree(self.folder, folder)
        return Stage(StoreSpec("file", str(folder)), Ambient.system(), props=dict(self.props))


WAY = (
    agents.accepted_once,
    pipeline.goes_on,
    pipeline.corrected,
    census.stopped,
    ontology.time_travel,
    bus.retried,
    count.everything,
)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder, scratch = tmp_path_factory.mktemp("store") / "kept", tmp_path_factory.mktemp("scratch")
    stage = Stage(StoreSpec("file", str(folder)), Ambient.system(), scratch, master="inline")
    told: dict[str, list[str]] = {}
    figures: dict[str, str] = {}
    for act in WAY:
        stage.told = told[act.__name__] = []
        figures[act.__name__] = asyncio.run(act(stage))
    return Played(folder, stage.props, told, figures)


@pytest.mark.timeout(300)
def test_the_whole_way_is_proven_without_spark(played: Played) -> None:
    assert "is killed (SIGKILL) after" in played.told["accepted_once"][1]
    assert any("another driver goes on with" in line for line in played.told["goes_on"])
    assert played.figures["stopped"].endswith("db-2 and web-3 stopped emitting disk_free_bytes; 4 hosts are left")
    assert "has generation 2 from" in played.figures["corrected"]
    assert played.figures["retried"].startswith("11 calls made, once each")
    assert played.figures["everything"].endswith("nothing lost, nothing twice")


def chunk_of(root: Path, window: str = "1m") -> Path:
    """A chunk of the last hour, which has one generation."""
    return max(root.glob(f"rollup/v1/window={window}/*/*/metric=requests_total/*.zst"))


def one_too_many(root: Path) -> None:
    path = chunk_of(root)
    table = pq.read_table(path)
    place = table.column_names.index("count")
    pq.write_table(table.set_column(place, table.schema.field(place), pc.add(table.column(place), 1)), path)


def a_row_is_gone(root: Path) -> None:
    path = chunk_of(root)
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


def a_sum_is_off(root: Path) -> None:
    path = chunk_of(root, "1h")
    table = pq.read_table(path)
    place = table.column_names.index("sum")
    sums = pa.chunked_array([pc.add(table.column(place).combine_chunks(), 0.25)])
    pq.write_table(table.set_column(place, table.schema.field(place), sums), path)


def counted_twice(root: Path) -> None:
    path = max(root.glob("manifests/v1/*/*/rollup-*.json"))
    generation = json.loads(path.read_bytes())
    generation["units"].append(generation["units"][0])
    path.write_text(json.dumps(generation))


def a_batch_is_gone(root: Path) -> None:
    max(root.glob("accepted/v1/*/*/*.json")).unlink()


def bytes_are_others(root: Path) -> None:
    manifest = json.loads(max(root.glob("accepted/v1/*/*/*.json")).read_bytes())
    path = root / manifest["raw_blob_key"]
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def the_conflict_is_gone(root: Path) -> None:
    next(root.glob("quarantine/v1/identity-conflict/*/*/*/*.json")).unlink()


def a_relation_is_gone(root: Path) -> None:
    (manifest,) = root.glob("commits/1-*/manifest.json")
    (path,) = [
        root / file["path"] for file in json.loads(manifest.read_bytes())["files"] if file["type_name"] == "Emits"
    ]
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 0), path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("tamper", "evidence"),
    [
        (one_too_many, "in windows of 60 s: .* is not "),
        (a_row_is_gone, "windows of 60 s: 1 rows are missing, 0 too many"),
        (a_sum_is_off, "in windows of 3600 s: .* is not "),
        (counted_twice, "is in two current chunks"),
        (a_batch_is_gone, "batches were acknowledged, "),
        (bytes_are_others, "its bytes have the hash"),
        (the_conflict_is_gone, "0 frames are kept as conflicts"),
        (a_relation_is_gone, "is not what was sent"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_the_witness_notices(
    played: Played, tmp_path: Path, tamper: Callable[[Path], None], evidence: str
) -> None:
    stage = played.copy(tmp_path / "copy")
    tamper(stage.root)
    with pytest.raises(ProofFailed, match=evidence):
        await count.everything(stage)


async def test_an_act_says_that_it_cannot_go_on(tmp_path: Path) -> None:
    stage = Stage(StoreSpec("file", str(tmp_path)), Ambient.system())
    for act in (pipeline.goes_on, pipeline.corrected, census.stopped, count.everything):
        with pytest.raises(ProofFailed, match="an act that this one goes on from has failed"):
            await act(stage)


async def test_a_collector_that_does_not_start_is_heard(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    stage = Stage(StoreSpec("file", str(tmp_path / "file")), Ambient.system(), tmp_path)
    with pytest.raises(ProofFailed, match="collector first did not start: "):
        await agents.accepted_once(stage)


async def test_a_driver_that_fails_is_heard(tmp_path: Path) -> None:
    stage = Stage(StoreSpec("file", str(tmp_path / "store")), Ambient.system(), tmp_path, master="nonsense")
    stage.leave(agents.Sent(0, "token"))
    with pytest.raises(ProofFailed, match=r"the first driver ended: .*is no Spark master"):
        await pipeline.goes_on(stage)


class TestPlainFrames:
    def test_reads_what_the_format_says(self) -> None:
        records: list[Record] = [
            Gauge("load", 0.1, 10, {"b": "2", "a": "1"}),
            Gauge("load", float("inf"), 30, {"b": "2", "a": "1"}),
            Counter("requests", 2**40, 20),
            Log("hello", 25),
            Gauge("depth", -7, 40),
        ]
        frame = plain.read(encode(pack("web-1", "boot-7", records, seq_start=40)))
        assert (frame.agent, frame.boot, frame.start, frame.end, frame.logs) == ("web-1", "boot-7", 40, 44, [43])
        found = {each.seq: (each.kind, each.name, each.labels, each.time_ns, each.value) for each in frame.samples}
        assert found == {
            40: ("gauge", "load", (("a", "1"), ("b", "2")), 10, 0.1),
            41: ("gauge", "load", (("a", "1"), ("b", "2")), 30, float("inf")),
            42: ("counter", "requests", (), 20, float(2**40)),
            44: ("gauge", "depth", (), 40, -7.0),
        }

    def test_reads_all_that_the_demo_sends(self) -> None:
        hour = 488_888
        for host in telemetry.HOSTS:
            for cut in telemetry.batches(host, hour, Ambient.system().rng):
                ours, theirs = plain.read(cut.frame), decode(cut.frame)
                values = sorted((each.seq, each.time_ns, each.value) for each in ours.samples)
                columns = theirs.samples.seq, theirs.samples.time_ns, theirs.samples.value
                assert values == sorted(zip(*(column.tolist() for column in columns), strict=True))
                assert ours.logs == theirs.logs.seq.tolist()
                assert hour * telemetry.HOUR_NS <= cut.first_ns < (hour + telemetry.HOURS) * telemetry.HOUR_NS

    def test_refuses_what_it_does_not_know(self) -> None:
        frame = encode(pack("a", "b", [Gauge("load", 1.5, 1)], seq_start=0))
        for broken in (frame[:-1], b"\x00" + frame[1:], frame[:20] + bytes([frame[20] ^ 1]) + frame[21:]):
            with pytest.raises(plain.Unreadable):
                plain.read(broken)
        other = encode(pack("a", "b", [Histogram("h", (1.0,), (1, 2), 3.0, 1)], seq_start=0))
        with pytest.raises(plain.Unreadable, match="neither histograms nor alerts"):
            plain.read(other)
