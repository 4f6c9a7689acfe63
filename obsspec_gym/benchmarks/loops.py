"""One GRPO step, three ways: TRL's own loop over environments, ours without speculation, ours with it.

The same tasks, model, terminals and machine, eight sandboxes with a remote service's latency, in one run. TRL's loop
(``environment_factory``) generates for all rows at once with ``model.generate``, then calls the tools of one row after
the other. Ours is free-running: a row goes on as soon as *its* tool has answered.

What TRL's loop is given, so that it plays the same episodes: the shipped pair's compact dialogue as a chat template
that can also write calls of any tool, and a tokenizer that reads a completion as a call of ``bash``. A completion that
hands in (``submit``) is an answer without a call, which ends its loop; the terminal is then judged as ever.

As in ``bench overlap``, tasks' programs have little to do (a remote sandbox does not compute where the policy does) and
decoding steps are paced to a larger model's, in all three.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from obsspec_gym.agents.dialogue import END
from obsspec_gym.agents.loading import load_model, model_directory
from obsspec_gym.envs.command import submitted_answer
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.envs.terminal import TerminalEnv
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.metrics import Spread
from obsspec_gym.training.config import parse_config
from obsspec_gym.training.training import Training

DEFAULTS: dict[str, Any] = {
    "suite": "basics",
    "repeats": 1,
    "steps": 3,
    "envs": 8,
    "group": 4,
    "max_turns": 8,
    "latency": "remote",
    "work": 0.05,
    "pace": 0.03,
    "world_model": "cascade",
    "sandbox": "bubblewrap",
    "seed": 0,
    "out": "runs/bench_loops",
}
FULL: dict[str, Any] = {"repeats": 3, "steps": 4}

LOOPS = ("trl", "off", "on")

_TURN_TOKENS = 96
_EPISODE_TOKENS = 1024

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}<|task|>{{ message.content }}"
    "{%- elif message.role == 'assistant' and message.tool_calls -%}"
    "{%- set call = message.tool_calls[0].function -%}"
    "<|act|>{%- if call.arguments.command is defined -%}{{ call.arguments.command }}"
    "{%- else -%}{{ call.name }} {{ call.arguments | tojson }}{%- endif -%}<|end|>"
    "{%- elif message.role == 'assistant' -%}<|act|>{{ message.content }}<|end|>"
    "{%- elif message.role == 'tool' -%}<|obs|>{{ message.content }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|act|>{%- endif -%}"
)
"""The compact dialogue, with calls of other tools than ``bash`` written out: TRL asks for a template that can."""


def run(*, repeats: int, steps: int, report: Callable[[str], None], **options: Any) -> dict[str, Any]:
    """Every loop, interleaved.

    Args:
        repeats: Trainings of each loop.
        steps: Measured steps of a training; one before them warms up.
        report: Is told about progress.
        **options: ``suite``, ``envs`` (rows of a step and sandboxes, as many of both), ``group`` (rows a task),
            ``max_turns``, ``latency``, ``work``, ``pace`` (seconds a decoding step takes at least), ``world_model``,
            ``sandbox``, ``seed`` and ``out``.

    Returns:
        For each of ``trl``, ``off`` and ``on``: ``seconds_per_step`` (with its spread), ``rollouts_per_hour``, and
        the means of a rollout's reward and of the tokens it sampled, which differ by chance only (TRL draws other
        noise). ``off_vs_trl``
        and ``on_vs_off``: how many times faster.
    """
    if repeats < 1 or steps < 1:
        raise InvalidArgumentError(f"repeats and steps must be >= 1, got {repeats} and {steps}")
    if options["envs"] < 2 or options["envs"] % options["group"]:
        raise InvalidArgumentError(f"envs must be a multiple of group, got {options['envs']} and {options['group']}")
    setting = _Setting(steps=steps, **options)
    measured: dict[str, list[_Step]] = {loop: [] for loop in LOOPS}
    for repeat, loop in itertools.product(range(repeats), LOOPS):
        report(f"{loop}: repeat {repeat + 1} of {repeats}")
        measured[loop] += setting.train(loop, report)
    result: dict[str, Any] = {"envs": setting.envs, "latency": setting.latency, "pace": setting.pace}
    for loop, taken in measured.items():
        result[loop] = _result(taken, setting.envs)
    per_step = {loop: result[loop]["seconds_per_step"]["median"] for loop in LOOPS}
    result["off_vs_trl"] = per_step["trl"] / per_step["off"]
    result["on_vs_off"] = per_step["off"] / per_step["on"]
    result["on_vs_trl"] = per_step["trl"] / per_step["on"]
    return result


_MEANS = {"reward": "reward", "completion_tokens": "completions/mean_length"}
"""Of a rollout, as TRL logs them for every loop."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One measured step.

    Attributes:
        seconds: Wall seconds, from the end of the step before to its own.
        entry: What was logged for it.
    """

    seconds: float
    entry: dict[str, Any]


def _result(steps: Sequence[_Step], rows: int) -> dict[str, Any]:
    spread = Spread.of([step.seconds for step in steps])
    means = {name: statistics.fmean(step.entry[logged] for step in steps) for name, logged in _MEANS.items()}
    return {"seconds_per_step": asdict(spread), "rollouts_per_hour": 3600 * rows / spread.median, **means}


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all three have in common."""

    suite: str
    steps: int
    envs: int
    group: int
    max_turns: int
    latency: str
    work: float
    pace: float
    world_model: str
    sandbox: str
    seed: int
    out: str

    def train(self, loop: str, report: Callable[[str], None]) -> list[_Step]:
        """One training by one of the loops."""
        clock = _Clock(loop, report)
        with self._trl(clock) if loop == "trl" else self._ours(loop, clock) as trainer:
            trainer.train()
        return clock.steps[1:]

    @property
    def _first(self) -> int:
        return 10_000 + self.seed * self._tasks

    @property
    def _tasks(self) -> int:
        return (self.steps + 1) * self.envs // self.group

    def _grpo(self, loop: str) -> dict[str, Any]:
        return {
            "output_dir": str(Path(self.out) / loop),
            "use_cpu": True,
            "bf16": False,
            "activation_checkpointing": False,
            "seed": self.seed,
            "max_steps": self.steps + 1,
            "per_device_train_batch_size": self.envs,
            "num_generations": self.group,
            "max_completion_length": _EPISODE_TOKENS,
            "learning_rate": 1e-6,  # what is measured is time: the policy stays what it is
            "loss_type": "dr_grpo",
            "scale_rewards": "none",
            "shuffle_dataset": False,
            "save_strategy": "no",
            "logging_steps": 1,
            "report_to": "none",
            "disable_tqdm": True,
        }

    @contextmanager
    def _ours(self, loop: str, clock: _Clock) -> Iterator[GRPOTrainer]:
        config = {
            "suite": self.suite,
            "work": self.work,
            "tasks": {"first": self._first, "count": self._tasks},
            "max_turn_tokens": _TURN_TOKENS,
            "terminals": {
                "num_envs": self.envs,
                "sandbox": self.sandbox,
                "latency": self.latency,
                "max_turns": self.max_turns,
            },
            "world_model": {"source": self.world_model if loop == "on" else "none"},
            "speculation": {"depth": 1 if loop == "on" else 0, "adaptive": False},
            "engine": {"options": {"driver": "process", "step_seconds": self.pace}},
            "grpo": self._grpo(loop),
        }
        with Training(parse_config(config)).trainer([clock]) as trainer:
            yield trainer

    @contextmanager
    def _trl(self, clock: _Clock) -> Iterator[GRPOTrainer]:
        suite, directory = get_suite(self.suite, work=self.work), model_directory("shipped", "policy")
        rows = [
            {"prompt": [{"role": "user", "content": suite.task(index).instruction}], "task": index}
            for index in range(self._first, self._first + self._tasks)
        ]
        model = load_model(directory, "float32")
        model.generate = _paced(model.generate, self.pace)  # type: ignore[assignment, arg-type]  # a method becomes a function
        grpo = self._grpo("trl") | {
            "max_tool_calling_iterations": self.max_turns - 1,  # the last completion is to hand in
            "generation_kwargs": {"max_new_tokens": _TURN_TOKENS},
        }
        with ExitStack() as stack:
            samples = itertools.count()

            def make() -> Shell:
                env = TerminalEnv(suite, sandbox=self.sandbox, max_turns=self.max_turns, latency=self.latency)
                stack.callback(env.close)
                return Shell(env, next(samples) % self.group)

            yield GRPOTrainer(
                model,
                reward_funcs=_judge,
                args=GRPOConfig(**grpo),
                train_dataset=Dataset.from_list(rows),
                processing_class=_tokenizer(directory),
                environment_factory=make,
                callbacks=[clock],
            )


class Shell:
    """A terminal as TRL's loop takes it: ``bash`` is the tool.

    TRL makes a tool of every public method besides ``reset``.

    Args:
        env: The terminal.
        sample: Which member of its group it plays.
    """

    def __init__(self, env: TerminalEnv, sample: int) -> None:
        self._env, self._sample = env, sample

    def reset(self, **row: Any) -> None:
        """Begins an episode; the instruction is in the prompt already."""
        self._env.reset(options={"task": row["task"], "sample": self._sample})

    def bash(self, command: str) -> str:
        """Runs a command.

        Args:
            command: The bash command.
        """
        return self._env.step(command)[0]

    def _hand_in(self, answer: str) -> float:
        return self._env.step(answer)[1]


def _judge(completions: Sequence[Any], environments: Sequence[Shell], **_: Any) -> list[float | None]:
    """The terminals' rewards: of those that handed in."""
    return [
        shell._hand_in(messages[-1]["content"]) if submitted_answer(messages[-1]["content"]) is not None else 0.0
        for messages, shell in zip(completions, environments, strict=True)
    ]


class CompactTokenizer(PreTrainedTokenizerFast):
    """The shipped pair's tokenizer, which reads a completion as a message: a call of ``bash``, or an answer."""

    def parse_response(self, response: Any, schema: Any = None, *, prefix: Any = None, tools: Any = None) -> Any:
        """A command is a call; what hands in, or was cut, is an answer and ends TRL's loop."""
        text = str(self.decode(response))
        command = text.removesuffix(END)
        if command == text or submitted_answer(command) is not None:
            return {"role": "assistant", "content": command}
        call = {"type": "function", "function": {"name": "bash", "arguments": {"command": command}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


def _tokenizer(directory: Path) -> CompactTokenizer:
    tokenizer: CompactTokenizer = CompactTokenizer.from_pretrained(str(directory), local_files_only=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = {}  # TRL asks the tokenizer only where there is one
    return tokenizer


def _paced(generate: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """``generate`` at the pace of a larger model."""

    def paced(*args: Any, **options: Any) -> Any:
        return generate(*args, logits_processor=LogitsProcessorList([_Pace(seconds)]), **options)

    return paced


class _Pace(LogitsProcessor):
    """Has every decoding step take so long at least."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.perf_counter()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        time.sleep(max(0.0, self._last + self._seconds - time.perf_counter()))
        self._last = time.perf_counter()
        return scores


class _Clock(TrainerCallback):
    """Times steps from one log entry to the next: rollouts, update, and the engine's new weights."""

    def __init__(self, loop: str, report: Callable[[str], None]) -> None:
        self._loop, self._report = loop, report
        self._last = 0.0
        self.steps: list[_Step] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The first step begins."""
        self._last = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is over."""
        entry = state.log_history[-1]
        if "reward" in entry:
            now = time.perf_counter()
            self.steps.append(_Step(now - self._last, entry))
            self._last = now
            self._report(f"{self._loop}: step {state.global_step} of {state.max_steps}, {self.steps[-1].seconds:.1f} s")
