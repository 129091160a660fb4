"""The ingest benchmark: its frames are valid and each its own, its remote write is what it says, and it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from bench.ingest.batches import SMALL, Batches
from bench.ingest.peers import write_requests
from holdfast.ingest.frame import decode
from tests.tidy.tree import leaks

ROOT = Path(__file__).parents[3]


def test_every_batch_is_valid_and_has_an_identity_of_its_own() -> None:
    batches = Batches(SMALL)
    decoded = [decode(batches.make()) for _ in range(3)]
    assert len({batch.identity for batch in decoded}) == 3
    assert {len(batch) for batch in decoded} == {SMALL.samples}
    assert {batch.identity.seq_end for batch in decoded} == {SMALL.samples - 1}


def test_hosts_keep_their_boot_id_and_go_on_in_their_sequence() -> None:
    batches = Batches(SMALL, hosts=2)
    identities = [decode(batches.make()).identity for _ in range(6)]
    assert len({identity.boot_id for identity in identities}) == 2
    for boot in {identity.boot_id for identity in identities}:
        bounds = [(each.seq_start, each.seq_end) for each in identities if each.boot_id == boot]
        assert bounds == [(at * SMALL.samples, (at + 1) * SMALL.samples - 1) for at in range(3)]


def test_remote_write_holds_the_same_number_of_samples() -> None:
    (body,) = write_requests(2, 1)
    plain = bytes(pa.Codec("snappy").decompress(body, decompressed_size=_length(body), asbytes=True))
    # A sample is a field of its own: tag 2, then a double and a time.
    assert plain.count(b"__name__") == 91
    assert plain.count(b"\x09") >= 182


def _length(body: bytes) -> int:
    """The varint with which a snappy block begins."""
    total = shift = 0
    for byte in body:
        total |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return total


def test_the_benchmark_runs_and_keeps_its_results(tmp_path: Path) -> None:
    out = tmp_path / "ingest.json"
    command = [sys.executable, "-m", "bench.ingest", "--quick", "--store", "file", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())["results"]
    assert results["file"]["one scrape, 4 senders"]["ratio"] > 0
    assert results["file"]["one scrape, 4 senders"]["client_cpu_us_per_batch"] > 0
    assert set(results) == {"file", "peers"}
    assert not leaks(out.read_text())
