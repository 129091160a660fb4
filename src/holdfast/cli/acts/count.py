"""The closing check: everything counted again by somebody who has only the files."""

from holdfast.base.aio import blocking
from holdfast.cli.acts import plain, witness
from holdfast.cli.acts.agents import Sent
from holdfast.cli.acts.pipeline import Derived
from holdfast.cli.acts.stage import ProofFailed, Stage, prove
from holdfast.cli.acts.telemetry import HOURS


async def everything(stage: Stage) -> str:
    sent, derived = stage.take(Sent), stage.take(Derived)
    root = stage.root
    try:
        books = await blocking(witness.accepted, root)
    except (OSError, KeyError, ValueError, plain.Unreadable) as error:
        raise ProofFailed(f"the files do not say what was accepted: {type(error).__name__}: {error}") from error
    told = {(each.agent_id, each.boot_id, each.seq_start, each.seq_end): digest for each, digest in sent.told.items()}
    prove(books.batches == told, f"{len(told)} batches were acknowledged, {len(books.batches)} are accepted")
    prove(books.refused == {sent.forged}, f"{len(books.refused)} frames are kept as conflicts, and it was one")
    stage.tell(f"{len(told)} acknowledged batches, byte for byte; the refused one is kept and counts for nothing")
    rows = await blocking(lambda: witness.compare(books, witness.derived(root)))
    stage.tell(f"{len(books.samples)} samples, each once, give the {rows} rows of all windows, figure by figure")
    for number, commit in enumerate(derived.commits):
        hour = sent.first_hour + number
        prove(witness.emitting(root, commit) == books.emitted(hour, hour), f"commit {commit} is not what was sent")
    stage.tell(f"{HOURS} commits of the feed say who emitted what in each hour")
    return f"{len(books.samples)} samples and {books.logs} log lines in, {rows} rows out, nothing lost, nothing twice"
