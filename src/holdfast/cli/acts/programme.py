"""The acts in the order in which they are played."""

from holdfast.cli.acts import bill, bus, kill, laws, lease, lost, ontology, race, runs
from holdfast.cli.acts.stage import Act

ACTS: tuple[Act, ...] = (
    Act(
        "The laws hold",
        "Everything rests on conditional writes that tell the truth: these are the checks that holdfast doctor runs.",
        laws.every_law,
    ),
    Act(
        "Processes race on one counter",
        "They share a folder and nothing else. Compare-and-swap on one object makes every increment count once.",
        race.exact_sum,
    ),
    Act(
        "Writers are killed in the middle",
        "SIGKILL at any moment: what was acknowledged is there, nothing is half-written, the next writer goes on.",
        kill.nothing_lost,
    ),
    Act(
        "Responses get lost",
        "A write can land while its answer is lost. A retry that believes the refusal it meets would count it twice.",
        lost.settled,
    ),
    Act(
        "A lease changes hands",
        "An owner that was paused too long is fenced by the epoch: clocks decide who waits, never what is right.",
        lease.old_owner_fenced,
    ),
    Act(
        "A run is killed, and goes on",
        "Each finished turn is journaled in the store: whoever calls the same run again goes on where it stopped.",
        runs.survives,
    ),
    Act(
        "Writers commit, and the past stays",
        "Typed entities in Parquet, one head, many writers. Every commit can be asked as if it were the last.",
        ontology.time_travel,
    ),
    Act(
        "Events are retried, or put aside",
        "One worker claims an event and tries again when its handler fails; once it is done nobody gets it again.",
        bus.retried,
    ),
    Act(
        "The bill",
        "Requests, not bytes, are what an object store charges for; so every one is counted, and none is wasted.",
        bill.requests,
    ),
)
