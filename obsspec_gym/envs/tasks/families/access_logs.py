"""Collect the logs of a few servers, then find in them who, where, how often and how slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from obsspec_gym.envs.tasks.families.common import (
    HELD_OUT_LEADS,
    HELD_OUT_TAILS,
    LEADS,
    TAILS,
    ask,
    succeeded,
)
from obsspec_gym.envs.tasks.family import Phrasings, Scene, Step, listed, repetitions
from obsspec_gym.envs.tasks.words import Words

COLLECT = """\
#!/bin/bash
# Collects the logs of all servers into all.txt; checksums every line on its way.
count=0
for log in *.log; do
  while read -r line; do
    for _ in $(seq {rounds}); do sum=$(cksum <<< "$line"); done
    echo "${{log%.log}} $line"
  done < "$log"
done > all.txt
for log in *.log; do count=$((count + $(wc -l < "$log"))); done
echo "$count requests collected"
"""

QUERIES: Mapping[str, str] = {
    "client": "cut -d' ' -f2 all.txt | sort | uniq -c | sort -n | tail -n 1 | awk '{{print $2}}'",
    "busiest": "cut -d' ' -f1 all.txt | sort | uniq -c | sort -n | tail -n 1 | awk '{{print $2}}'",
    "errors": "awk '$4 >= 500' all.txt | wc -l",
    "failing": "awk '$4 >= 500 {{print $3}}' all.txt | sort | uniq -c | sort -n | tail -n 1 | awk '{{print $2}}'",
    "slowest": "sort -n -k 5 all.txt | tail -n 1 | cut -d' ' -f3",
    "time": "awk '$2 == \"{client}\" {{ms += $5}} END {{print ms}}' all.txt",
}
"""What answers each kind of question."""

_ROUNDS = 4
_STATUSES = ("200", "200", "200", "204", "301", "404", "500", "503")


class AccessLogs:
    """Logs of two to four servers; lines are ``CLIENT PATH STATUS MILLISECONDS``."""

    name = "logs"
    phrasings = Phrasings(
        leads=LEADS,
        cores={
            "client": (
                "which client sent the most requests?",
                "submit the client with the most requests.",
                "find the client that asked most often.",
                "the name of the most active client is wanted.",
                "over all servers, which client has the most lines?",
                "who sends the most requests? Submit the client.",
                "collect the logs and name the client with the highest count.",
                "report the client that occurs most in the logs.",
            ),
            "busiest": (
                "which server got the most requests?",
                "submit the server with the most requests.",
                "find the server that was asked most often.",
                "the name of the busiest server is wanted.",
                "which of the servers has the most lines in its log?",
                "where did the most requests go? Submit the server.",
                "collect the logs and name the server with the highest count.",
                "report the server that has the longest log.",
            ),
            "errors": (
                "how many requests failed with a status of 500 or more?",
                "count the requests with a status from 500 on.",
                "submit the number of 5xx answers.",
                "find out how many server errors (status 500 and up) there are.",
                "the number of requests with status >= 500 is wanted.",
                "over all servers, how many lines have a 5xx status?",
                "collect the logs and count the server errors.",
                "report how many requests ended in 500 or 503.",
            ),
            "failing": (
                "which path fails most often with a status of 500 or more?",
                "submit the path with the most 5xx answers.",
                "find the path that has the most server errors.",
                "the path with most requests of status >= 500 is wanted.",
                "over all servers, which path has the most 5xx lines?",
                "where do server errors (500 and up) happen most? Submit the path.",
                "collect the logs and name the path with the most server errors.",
                "report the path that ends in 500 or 503 most often.",
            ),
            "slowest": (
                "which path had the slowest request?",
                "submit the path of the request that took longest.",
                "find the slowest request and submit its path.",
                "the path with the largest time in milliseconds is wanted.",
                "over all servers, which path has the longest request?",
                "what took the most milliseconds? Submit the path.",
                "collect the logs and name the path of the slowest request.",
                "report the path in the line with the most milliseconds.",
            ),
            "time": (
                "how many milliseconds did the requests of {client} take together?",
                "add up the milliseconds of {client}.",
                "submit the total time of client {client} in milliseconds.",
                "find out how long all requests of {client} took, in milliseconds.",
                "the sum of the times of {client} is wanted.",
                "over all servers, what is the total of the last column for {client}?",
                "collect the logs and sum the milliseconds of {client}.",
                "report the milliseconds that {client} used in all.",
            ),
        },
        tails=TAILS,
    )
    held_out_phrasings = Phrasings(
        leads=HELD_OUT_LEADS,
        cores={
            "client": (
                "somebody floods us, tell me who it is.",
                "I need to know our keenest visitor.",
                "whom do we see more than anybody else?",
            ),
            "busiest": (
                "one machine does more work than the others, tell me its name.",
                "I need to know the machine under the heaviest load.",
                "to which machine do people turn more than to any other?",
            ),
            "errors": (
                "tell me in how many cases our machines broke down (5xx).",
                "I need to know the amount of internal failures, 5xx that is.",
                "on how many occasions did people see a 5xx?",
            ),
            "failing": (
                "something breaks down (5xx) more than the rest, tell me its path.",
                "I need to know our least reliable path, by 5xx.",
                "at which path did people see a 5xx more than at any other?",
            ),
            "slowest": (
                "people had to wait at one path more than ever, tell me where.",
                "I need to know where our record delay happened.",
                "at which path did somebody wait more than at any other?",
            ),
            "time": (
                "tell me the overall delay that {client} had to bear, in milliseconds.",
                "I need to know the waiting of {client}, all milliseconds together.",
                "taken together, what amount of milliseconds did {client} wait?",
            ),
        },
        tails=HELD_OUT_TAILS,
    )

    def scene(self, rng: Random, words: Words, phrasings: Phrasings, work: float) -> Scene:
        """Draws logs whose question has one answer."""
        kind = rng.choice(sorted(QUERIES))
        servers, clients, paths = words.several(rng.randint(2, 4)), words.several(3), words.several(4)
        while True:
            lines = [
                (rng.choice(servers), rng.choice(clients), f"/{rng.choice(paths)}", rng.choice(_STATUSES), ms)
                for ms in rng.sample(range(5, 900), rng.randint(24, 36))
            ]
            facts = {"kind": kind, "client": rng.choice(clients)}
            answer = _answer(kind, lines, facts["client"])
            if answer is not None and {line[0] for line in lines} == set(servers):
                break
        files = {
            f"{server}.log": "".join(
                f"{client} {path} {status} {ms}\n" for where, client, path, status, ms in lines if where == server
            )
            for server in servers
        }
        files["collect"] = COLLECT.format(rounds=repetitions(_ROUNDS, work))
        instruction = phrasings.instruction(rng, kind, **facts)
        return Scene(instruction, files, answer=answer, facts=facts)

    def decide(self, scene: Scene, transcript: Sequence[Step]) -> str:
        """Collects, asks, hands in."""
        if not listed(transcript):
            return "ls"
        query = QUERIES[scene.facts["kind"]].format(**scene.facts)
        if not succeeded(transcript, "./collect", query):
            return "./collect"
        return ask(transcript, query, "./collect")


def _answer(kind: str, lines: Sequence[tuple[str, str, str, str, int]], client: str) -> str | None:
    """The question's answer, without any of the agent's tools; ``None`` where two are equally right."""
    failed = [line for line in lines if line[3].startswith("5")]
    match kind:
        case "client":
            return _most_frequent([line[1] for line in lines])
        case "busiest":
            return _most_frequent([line[0] for line in lines])
        case "failing":
            return _most_frequent([line[2] for line in failed])
        case "errors":
            return str(len(failed)) if failed else None
        case "slowest":
            return max(lines, key=lambda line: line[4])[2]
        case _:
            total = sum(line[4] for line in lines if line[1] == client)
            return str(total) if total else None


def _most_frequent(values: Sequence[str]) -> str | None:
    counts = Counter(values).most_common(2)
    return counts[0][0] if len(counts) == 2 and counts[0][1] > counts[1][1] else None
