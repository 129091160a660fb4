"""The acts in the order in which they are played."""

from holdfast.cli.acts import agents, bill, bus, census, count, kill, laws, lease, lost, ontology, pipeline, race, runs
from holdfast.cli.acts.stage import Act

ACTS: tuple[Act, ...] = (
    Act(
        "The laws hold",
        "Everything rests on conditional writes that tell the truth: these are the checks that holdfast doctor runs.",
        laws.every_law,
        part="The ground: conditional writes, and what can be built on them",
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
        "Agents send, and a collector is killed",
        "Acceptance is one conditional create per batch, so any collector may take any batch, and taking it twice is "
        "taking it once.",
        agents.accepted_once,
        part="The whole way: from agents to answers",
    ),
    Act(
        "The pipeline is killed, and goes on",
        "Each job is a durable run, and names of what it makes follow from what it read: another driver goes on, and "
        "nothing counts twice.",
        pipeline.goes_on,
    ),
    Act(
        "Late data corrects the past",
        "An hour is computed again from all its batches and becomes visible in one create; no reader sees a half.",
        pipeline.corrected,
    ),
    Act(
        "Who stopped emitting what",
        "The pipeline commits hosts, metrics and series as entities and relations with history: the question is one "
        "query.",
        census.stopped,
    ),
    Act(
        "Operators commit, and the past stays",
        "Entities, relations and an event in one commit, one head, many writers. Every commit can be asked as if it "
        "were the last.",
        ontology.time_travel,
    ),
    Act(
        "Events are retried, or put aside",
        "The events of those commits: one worker claims each and tries again when its handler fails; nobody gets it "
        "again once it is done.",
        bus.retried,
    ),
    Act(
        "Everything is counted again",
        "A witness that shares no code with all of the above reads the files: JSON, Parquet and frames, byte by byte.",
        count.everything,
        part="The account",
    ),
    Act(
        "The bill",
        "Requests, not bytes, are what an object store charges for; so every one is counted, and none is wasted.",
        bill.requests,
    ),
)
