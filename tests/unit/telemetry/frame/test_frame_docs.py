"""The page on formats says what the code does."""

import json
import re
from dataclasses import fields, replace

from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.references import by_time
from holdfast.telemetry.frame import Limits, Reason
from holdfast.telemetry.frame.columns import DIVISORS, MOST_BOUNDS, MOST_LAYOUTS, Counts
from holdfast.telemetry.frame.envelope import MAGIC
from holdfast.telemetry.identity import MAX_AGENT_BYTES, MAX_BOOT_BYTES, BatchIdentity
from holdfast.telemetry.records import HIGHEST_SEVERITY, Kind, State
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


def test_every_reason_is_explained() -> None:
    table = PAGE.partition("### What a reader refuses")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z]+_[a-z]+)`", table)) == {reason.value for reason in Reason}


def test_numbers_of_the_page_are_those_of_the_code() -> None:
    limits = Limits()
    assert f"`{MAGIC.hex(' ').upper()}`" in PAGE
    assert f"agent id, 1 to {MAX_AGENT_BYTES}" in PAGE
    assert f"boot id, 1 to {MAX_BOOT_BYTES}" in PAGE
    assert f"{limits.frame_bytes >> 20} MiB a frame, {limits.payload_bytes >> 20} MiB a payload" in PAGE
    assert f"{limits.records:,} records, {limits.elements:,} labels and as many buckets" in PAGE
    assert f"at most {MOST_LAYOUTS:,} layouts, of at most {MOST_BOUNDS:,} bounds each" in PAGE
    assert f"severity (ints, 0 to {HIGHEST_SEVERITY})" in PAGE
    kinds = [f"{kind.value} {kind.name.lower()}" for kind in Kind]
    assert f"kind (ints; {kinds[0]}, {kinds[1]})" in PAGE
    assert f"state (ints; {', '.join(f'{state.value} {state.name.lower()}' for state in State)})" in PAGE
    assert [f"{divisor:,.0f}" in PAGE for divisor in DIVISORS[-2:]] == [True, True]
    assert f"{len(DIVISORS) + 1}" in re.findall(r"^\| 7, (\d) \|", PAGE, re.MULTILINE)


def test_the_reference_by_time_is_described_field_by_field() -> None:
    section = PAGE.partition("## Reference by time")[2].partition("\n## ")[0]
    outer, _, inner = section.partition("| field of the manifest |")
    manifest = replace(
        accepted_manifest(),
        records={"gauge": 1},
        authority_id="a",
        write_id="w",
        records_from_unix_ns=0,
        records_until_unix_ns=1,
    )
    found = by_time(manifest, write_id="w", replaces="v")
    document = json.loads(found.body)
    assert found.body == json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    for table, fields_there in ((outer, document), (inner, manifest.document())):
        cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
        assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(fields_there)
        assert f"| `schema` | `{fields_there['schema']}` |" in table
    assert (manifest.wire_version, manifest.frame_version) == (1, 1)
    assert document["accepted_manifest_key"] == manifest.key
    key = f"accepted-by-time/v1/date=2025-10-09/hour=12/{manifest.identity.manifest_id}.json"
    assert found.key == key
    shown = key.replace("2025-10-09", "YYYY-MM-DD").replace("=12", "=HH")
    assert shown.replace(manifest.identity.manifest_id, "{manifest id}") in PAGE


def accepted_manifest() -> AcceptedManifest:
    identity = BatchIdentity("web-1", "boot-7", 40, 42)
    sha = "ab" * 32
    return AcceptedManifest(identity, sha, 9, layout.blob_key(sha), 1_760_011_200 * 10**9, "c", 1, 1)


def test_counts_are_listed_in_their_order() -> None:
    table = PAGE.partition("### Payload")[2].partition("Then the tables")[0]
    listed = {int(number): name for number, name in re.findall(r"\| (\d+) \| ([a-z][^|]*)", table)}
    words = {number: name.split()[0].rstrip(",") for number, name in listed.items()}
    names = [field.name for field in fields(Counts)]
    assert sorted(words) == list(range(len(names)))
    plain = [name for number, name in enumerate(names) if not name.endswith("_bytes")]
    assert [words[names.index(name)] for name in plain] == [name.split("_")[0] for name in plain]
