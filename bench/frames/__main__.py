"""``python -m bench.frames [--quick] [--out FILE]``

Host metrics, one scrape to a thousand per batch. Bytes per sample of the whole frame, names and labels included;
samples per second of processor time for encoding and for decoding with every check; ``throughput_ratio`` is ours over
theirs. Interleaved pairs, median of ten.
"""

import argparse
import asyncio
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from bench.frames.formats import OTHERS, OURS, Format
from bench.frames.hosts import records
from bench.lib import RESULTS, Comparison, Contender, compare, facts, table, write_results
from holdfast.telemetry.frame import Batch, pack

SCRAPES = (1, 11, 110, 1100)
WORK = 100_000
"""Samples in one run of a contender: small batches are handled many times over."""
AIMED_AT = 110
"""Scrapes of the batch that the aims are about: some 10,000 samples."""
BYTES_AIM, DECODE_AIM = 2.0, 5_000_000
HEADER = ("samples and format", "bytes/sample", "x ours", "encode M/s", "x", "decode M/s", "x", "aim")


def contender(form: Format, verb: str, batch: Batch, repeat: int) -> Contender:
    ready = form.prepare(batch)
    data = form.encode(ready)

    async def run(_number: int) -> int:
        for _ in range(repeat):
            if verb == "encode":
                form.encode(ready)
            else:
                form.decode(data)
        return repeat * len(batch)

    return Contender(run)


async def bench(*, pairs: int, work: int, scrapes: tuple[int, ...]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    for count in scrapes:
        batch = pack("host-1", "boot-1", records(count), seq_start=1)
        repeat = max(1, work // len(batch))
        size = len(OURS.encode(batch)) / len(batch)
        by_format: dict[str, Any] = {}
        ours: dict[str, list[float]] = {"encode": [], "decode": []}
        for other in OTHERS:
            other_size = len(other.encode(other.prepare(batch))) / len(batch)
            figures: dict[str, Any] = {
                "bytes_per_sample": round(other_size, 3),
                "bytes_ratio": round(other_size / size, 2),
            }
            for verb, rates in ours.items():
                sides = (contender(form, verb, batch, repeat) for form in (OURS, other))
                found = await compare(*sides, pairs=pairs)
                rates.append(1e6 / found.cpu_us)
                figures[verb] = _figures(found)
            by_format[other.name] = figures
        decoded = median(ours["decode"])
        mine = {
            "bytes_per_sample": round(size, 3),
            "encode_samples_per_cpu_second": round(median(ours["encode"])),
            "decode_samples_per_cpu_second": round(decoded),
            **_judged(count, size, decoded),
        }
        results[f"{len(batch)} samples"] = {OURS.name: mine, **by_format}
        rows.extend(_rows(len(batch), mine, by_format))
    print(table(HEADER, rows), end="\n\n", flush=True)
    return results


def _figures(found: Comparison) -> dict[str, Any]:
    return {
        "samples_per_cpu_second": round(1e6 / found.other_cpu_us),
        "our_samples_per_cpu_second": round(1e6 / found.cpu_us),
        "throughput_ratio": round(found.other_cpu_us / found.cpu_us, 3),
    }


def _judged(count: int, size: float, decoded: float) -> dict[str, Any]:
    if count != AIMED_AT:
        return {}
    aims = {"bytes_per_sample": BYTES_AIM, "decode_samples_per_cpu_second": DECODE_AIM}
    return {"aims": aims, "met": size <= BYTES_AIM and decoded >= DECODE_AIM}


def _rows(samples: int, mine: dict[str, Any], others: dict[str, Any]) -> list[tuple[str, ...]]:
    verdict = "" if "met" not in mine else "met" if mine["met"] else "MISSED"
    rates = [f"{mine[f'{verb}_samples_per_cpu_second'] / 1e6:.2f}" for verb in ("encode", "decode")]
    rows: list[tuple[str, ...]] = [
        (f"{samples:,}: {OURS.name}", f"{mine['bytes_per_sample']:.2f}", "", rates[0], "", rates[1], "", verdict)
    ]
    for name, figures in others.items():
        cells = [
            cell
            for verb in ("encode", "decode")
            for cell in (
                f"{figures[verb]['samples_per_cpu_second'] / 1e6:.2f}",
                f"{1 / figures[verb]['throughput_ratio']:.2f}",
            )
        ]
        size = (f"{figures['bytes_per_sample']:.2f}", f"{figures['bytes_ratio']:.2f}")
        rows.append((f"{samples:,}: {name}", *size, *cells, ""))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.frames", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--quick", action="store_true", help="three short pairs: does it run? The figures mean little")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    pairs, work, scrapes = (3, 1_000, SCRAPES[:2]) if options.quick else (10, WORK, SCRAPES)
    results = asyncio.run(bench(pairs=pairs, work=work, scrapes=scrapes))
    out = options.out or (None if options.quick else RESULTS / "frames.json")
    if out is not None:
        write_results(out, {"facts": facts("holdfast", "numpy", "pyarrow"), "pairs": pairs, "results": results})
        print(f"written: {out.name}")


if __name__ == "__main__":
    main()
