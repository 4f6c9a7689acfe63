"""AgentBench's operating-system tasks as a suite: questions about a machine, answered by ``submit TEXT``."""

from __future__ import annotations

import gzip
import json
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from obsspec_gym.envs.tasks.compare import COMPARE, Comparison
from obsspec_gym.envs.tasks.task import Expert, Image, Task
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import SUBMIT

_ASK = "\n\nHand in your answer with: submit ANSWER"
_CHECKS = {
    "integer-match": Comparison.INTEGER,
    "string-match": Comparison.STRING,
    "size-match": Comparison.SIZE,
}
_GOLD = "gold"
_SECONDS = 60.0


class AgentBenchSuite:
    """The tasks of a JSON-lines file (``.gz`` or not), one object a line, in AgentBench's format.

    ``create.init`` is bash that sets the scene, as root, in the home directory (which is also where the agent
    begins); ``start`` is run after it and may leave programs running. A scene whose script ends because a program is
    not there (exit status 126 or 127, or a command that was not found) is none: the episode does not begin. An answer
    is judged by ``evaluation``: by ``match`` it is compared with a text or a regular expression; by ``check`` with what
    the gold command, ``evaluation.example``, printed before the episode, in a copy of the scene: as an integer
    (``integer-match``), as a text without surrounding blanks (``string-match``) or as a size with its unit
    (``size-match``). Nothing an agent does to the scene changes what is expected. Where the question is about what
    the agent does, gold has to be run after it, over what it left, and can be no better than that; such records say
    ``"when": "after"`` in their ``evaluation``, and :attr:`judged_after` names them.

    Args:
        path: The file.

    Attributes:
        judged_after: Ids of the tasks whose gold command is run after the episode.

    Raises:
        InvalidArgumentError: If it cannot be read, a line is not such a task, or an id is missing or not unique.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._records = _read(self._path)
        self._tasks = [_task(record, self._path) for record in self._records]
        twice = [task_id for task_id, count in Counter(task.id for task in self._tasks).items() if count > 1]
        if twice:
            raise InvalidArgumentError(f"ids in {str(path)!r} must be unique, got {twice[0]!r} more than once")
        self.judged_after = tuple(task.id for task in self._tasks if _GOLD in task.verifier_files)
        self._gold = {
            task.id: _script(record["evaluation"].get("example"))
            for task, record in zip(self._tasks, self._records, strict=True)
        }

    @property
    def name(self) -> str:
        """``agentbench:PATH``."""
        return f"agentbench:{self._path}"

    def __len__(self) -> int:
        """How many tasks the file has."""
        return len(self._tasks)

    def task(self, index: int) -> Task:
        """The ``index``-th task.

        Raises:
            InvalidArgumentError: If the index is out of range.
        """
        if not 0 <= index < len(self):
            raise InvalidArgumentError(f"a task index is in [0, {len(self)}), got {index}")
        return self._tasks[index]

    def expert(self, task: Task) -> Expert:
        """Runs the gold command and submits what it prints.

        Raises:
            InvalidArgumentError: If the task is not of this suite or has no gold command.
        """
        if task.id not in self._gold:
            raise InvalidArgumentError(f"task {task.id!r} is not one of {self.name}")
        if not self._gold[task.id]:
            raise InvalidArgumentError(f"task {task.id} has no gold command")
        return _answer(self._gold[task.id])


def _answer(gold: str) -> Expert:
    observation = yield f"bash -c {shlex.quote(gold)} 2>/dev/null"
    yield f"{SUBMIT} {observation.rpartition(chr(10))[0].strip()}"


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
        records = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise InvalidArgumentError(f"expected a file of JSON lines, got {str(path)!r}: {error}") from None
    if not records or not all(isinstance(record, dict) for record in records):
        raise InvalidArgumentError(f"expected a JSON object on every line of {str(path)!r}")
    return records


def _task(record: Mapping[str, Any], path: Path) -> Task:
    name = record.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise InvalidArgumentError(f"every record of {str(path)!r} needs an id, a text or a number, got {name!r}")
    try:
        verifier, files, gold = _judge(record["evaluation"])
        return Task(
            id=f"agentbench/{name}",
            instruction=record["description"].strip() + _ASK,
            setup=_setup(_script(record["create"].get("init")), _script(record.get("start"))),
            verifier=verifier,
            verifier_files=files,
            image=Image(user="root", workdir="/root"),
            verifier_timeout=_SECONDS,
            gold=gold,
            as_built=_GOLD not in files,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(f"record {name!r} of {str(path)!r} is not a task: {error!r}") from None


def _script(value: object) -> str:
    """A script: text, or an object with its ``code``."""
    if isinstance(value, dict):
        if value.get("language", "bash") != "bash" or not isinstance(value.get("code"), str):
            raise ValueError(f"expected a script or an object with bash code, got {value!r}")
        return str(value["code"])
    if value is not None and not isinstance(value, str):
        raise ValueError(f"expected a script, got {value!r}")
    return value or ""


def _setup(init: str, start: str) -> str:
    """What sets the scene."""
    scripts = [_watched(f"bash -c {shlex.quote(script)} > /dev/null") for script in (init, start) if script]
    return "\n".join(scripts)


def _watched(command: str) -> str:
    """Bash that runs a command and ends with 127, saying why, where a program was not there.

    Many a script ends with the status of a command that found nothing: that is no failure.
    """
    return (
        f"said=$(mktemp -p /dev/shm) || exit 1\n{command} 2> $said < /dev/null\n"
        "status=$?; if missing=$(grep -am 1 ': command not found$' $said); then status=127; "
        "else missing=$(tail -n 1 $said); fi; rm -f $said\n"
        'case $status in 126 | 127) echo "$missing"; exit $status ;; esac; true'
    )


def _judge(evaluation: Mapping[str, Any]) -> tuple[str, dict[str, str | bytes], str]:
    """The verifier, its files, and what is run before the episode."""
    compare = 'python3 -I "$VERIFIER/compare.py"'
    if "match" in evaluation:
        comparison, expected = _match(evaluation["match"])
        return f'{compare} {comparison.value} "$VERIFIER/expected"', {"compare.py": COMPARE, "expected": expected}, ""
    check = evaluation["check"]
    if not (isinstance(check, list) and len(check) == 2 and check[0] is None and isinstance(check[1], dict)):
        raise ValueError(f"expected check to be [null, CHECK], got {check!r}")
    name = PurePosixPath(check[1]["file"]).stem
    if name not in _CHECKS:
        raise ValueError(f"checks are {', '.join(_CHECKS)}, got {name!r}")
    gold = _script(evaluation["example"])
    if not gold.strip():
        raise ValueError("expected a gold command in evaluation.example, got none")
    if evaluation.get("when", "before") == "after":
        script = (
            'expected=$(mktemp) && bash "$VERIFIER/gold" 2>/dev/null </dev/null >"$expected"\n'
            f'{compare} {_CHECKS[name].value} "$expected"'
        )
        return script, {"compare.py": COMPARE, _GOLD: gold}, ""
    before = _watched(f"bash -c {shlex.quote(gold)}")
    return f'{compare} {_CHECKS[name].value} "$VERIFIER/{_GOLD}"', {"compare.py": COMPARE}, before


def _match(match: object) -> tuple[Comparison, str]:
    """How an answer is matched, and with what; nothing matches an answer that is empty."""
    if isinstance(match, str):
        return Comparison.STRING, match
    if isinstance(match, dict) and isinstance(match.get("regex"), str):
        return Comparison.REGEX, match["regex"]
    if isinstance(match, dict) and isinstance(match.get("answer"), str):
        return (Comparison.STRING if match.get("strip", True) else Comparison.EXACT), match["answer"]
    raise ValueError(f"expected match to be a text, or an object with answer or regex, got {match!r}")
