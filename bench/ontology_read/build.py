"""``python -m bench.ontology_read.build PEER ENTITIES COMMITS FOLDER [ENDPOINT]``: one peer's table, commit by commit.

A process of its own, so that it can be stopped: a merge that takes minutes cannot be interrupted otherwise. It prints
the number of each commit that is done, and at last the version of the middle.
"""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from bench.ontology_read.data import History, Size
from bench.ontology_read.delta import Delta
from bench.ontology_read.iceberg import Iceberg
from bench.ontology_read.places import Place
from bench.ontology_read.sides import Peer

PEERS: dict[str, type[Peer]] = {"delta-rs": Delta, "pyiceberg": Iceberg}


def stopped(peer: str, side: Peer, seconds: float) -> str | None:
    """Build it in a process; None, or what to say of a peer that did not get there in time."""
    place, size = side.place, side.size
    command = [sys.executable, "-m", "bench.ontology_read.build", peer, str(size.entities), str(size.commits)]
    command += [str(place.folder), *([place.endpoint] if place.endpoint is not None else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
    lines: list[str] = []
    errors: list[str] = []
    readers = [
        threading.Thread(target=lambda: lines.extend(process.stdout or ())),
        threading.Thread(target=lambda: errors.extend(process.stderr or ())),
    ]
    for reader in readers:
        reader.start()
    try:
        code: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = None
    for reader in readers:
        reader.join()
    done = [line.split() for line in lines]
    if code == 0 and done and done[-1][0] == "past":
        side.past = int(done[-1][1])
        return None
    commits = sum(1 for line in done if line[0] == "commit")
    if code is None:
        return f"stopped after {seconds:.0f} s, {commits:,} of {size.commits:,} commits done"
    return f"failed after {commits:,} commits: {''.join(errors).strip().splitlines()[-1:]}"


async def main(peer: str, entities: str, commits: str, folder: str, endpoint: str | None = None) -> None:
    side = PEERS[peer](Place(Path(folder), endpoint), Size(int(entities), int(commits)))
    history = History(side.size)
    await side.begin(history)
    for number, customers in history.commits():
        await side.commit(number, customers, history)
        print(f"commit {number}", flush=True)
    print(f"past {side.past}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
