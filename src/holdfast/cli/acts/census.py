"""Which hosts stopped emitting a metric since a commit: one question, at every commit of the feed."""

from holdfast.cli.acts import witness
from holdfast.cli.acts.agents import Sent
from holdfast.cli.acts.pipeline import Derived
from holdfast.cli.acts.stage import Stage, prove
from holdfast.cli.acts.telemetry import HOURS, WATCHED
from holdfast.platform.census import TYPES, Emits, Host, Series
from holdfast.platform.open import Holdfast


async def stopped(stage: Stage) -> str:
    sent, derived = stage.take(Sent), stage.take(Derived)
    prove(len(derived.commits) == HOURS, f"{HOURS} hours were counted in commits {derived.commits}")
    books = witness.accepted(stage.root)
    async with stage.open() as store, Holdfast(store).ontology(*TYPES) as onto:
        first, last = derived.commits[0], derived.commits[-1]
        found = await onto.query(Emits).where(Emits.right_key == WATCHED).diff(first, last)
        gone = sorted(each.key[0] for each in found if each.action == "retracted")
        for number, commit in enumerate(derived.commits):
            rows = await onto.query(Emits).as_of(commit).all()
            hour = sent.first_hour + number
            counted = books.emitted(hour, hour)
            says = {(one.left_key, one.right_key) for one in rows}
            prove(says == counted, f"as of commit {commit}, {sorted(says ^ counted)} differ from what was sent")
            series = await onto.query(Series).as_of(commit).count()
            hosts = {host for host, _ in says}
            stage.tell(f"commit {commit}: {len(hosts)} hosts emit {len(says)} metrics, {series} series")
        left = await onto.query(Host).count()
    begin = {host for host, metric in books.emitted(sent.first_hour, sent.first_hour) if metric == WATCHED}
    end = {
        host
        for host, metric in books.emitted(sent.first_hour + HOURS - 1, sent.first_hour + HOURS)
        if metric == WATCHED
    }
    prove(gone == sorted(begin - end), f"{gone} stopped emitting {WATCHED}, it should be {sorted(begin - end)}")
    return f"since commit {first}, {' and '.join(gone)} stopped emitting {WATCHED}; {left} hosts are left"
