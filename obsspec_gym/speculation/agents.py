"""Who acts and who predicts: by name, loaded once, and made anew for each run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.history import History
from obsspec_gym.agents.lm_policy import load_policy
from obsspec_gym.agents.loading import check_engine, load_engine, load_model, model_directory, server_urls
from obsspec_gym.agents.policy import CallablePolicy, Policy
from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.cascade import CascadeWorldModel
from obsspec_gym.agents.world_model.loading import load_world_model
from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.envs.tasks import Suite, Task
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError
from obsspec_gym.types import SUBMIT, Action, Sampling

EXPERT = "expert"
MEMORY = "memory"
NONE = "none"
_MEMORY_AND = "memory+"

_MODEL_NICENESS = 10
"""A late prediction costs one chance, a late policy costs everybody."""


class Agents:
    """The policy and the world model of a command.

    Engines are loaded once, in :meth:`start`, each in a process of its own. Everything else is made anew for each
    run, with the engines' caches empty: no run is faster, or knows more, for what an earlier one left.

    Args:
        policy: ``shipped``, a model directory, or ``expert`` (the suite's scripted expert).
        world_model: ``cascade`` (memory, then the shipped model on a miss), ``memory``, ``shipped``, a model
            directory, ``memory+DIRECTORY``, or ``none``.
        suite: Where the expert comes from.
        tasks: What the expert will be asked about.
        temperature: Of the policy's sampling; 0 is greedy.
        think: Seconds that an expert pretends to think.
        max_tokens: Longest completion of a language model, in tokens.
        pace: Seconds that a decoding step of the policy takes at least: the pace of a larger model.
        engine: What the policy's model runs on: an engine's name, or the URLs of servers, separated by commas.
        world_model_engine: What the world model's runs on; always an engine of its own.

    Raises:
        InvalidArgumentError: If there is no such policy or world model, or a number is out of range.
        MissingExtraError: If a language model is asked for, and what runs it is not installed.
    """

    def __init__(
        self,
        policy: str,
        world_model: str,
        suite: Suite,
        tasks: Sequence[Task],
        *,
        temperature: float = 1.0,
        think: float = 0.0,
        max_tokens: int = 128,
        pace: float = 0.0,
        engine: str = "transformers",
        world_model_engine: str = "transformers",
    ) -> None:
        if not 0 <= temperature <= 10:
            raise InvalidArgumentError(f"temperature must be in [0, 10], got {temperature}")
        if not 0 <= think <= 60:
            raise InvalidArgumentError(f"think must be in [0, 60] seconds, got {think}")
        if not 0 <= pace <= 10:
            raise InvalidArgumentError(f"pace must be in [0, 10] seconds, got {pace}")
        for name in (engine, world_model_engine):
            check_engine(name)
        if pace and engine != "transformers":
            raise InvalidArgumentError(f"pace is for the embedded engine, got engine={engine!r}")
        self._policy = policy
        self._world_model = world_model
        self._policy_runs_on = engine
        self._model_runs_on = world_model_engine
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        self._think = think
        self._pace = pace
        self._suite = suite
        self._tasks = {task.id: task for task in tasks}
        remembers, model = _parts(world_model)
        self._remembers = remembers
        self._model = model
        self._policy_directory = None if policy == EXPERT else model_directory(policy, "policy")
        self._model_directory = None if model is None else model_directory(model, "world_model")
        if self._policy_directory is None:
            for task in tasks[:1]:
                suite.expert(task)  # a suite without one says so
        if self._policy_directory or self._model_directory:
            require_torch()
        self._policy_engine: Engine | None = None
        self._model_engine: Engine | None = None

    @property
    def predicts(self) -> bool:
        """Whether there is a world model at all."""
        return self._remembers or self._model is not None

    def start(self) -> None:
        """Loads the engines. Does nothing where no language model takes part."""
        if self._policy_directory:
            self._policy_engine = _load_engine(self._policy_directory, self._policy_runs_on, step_seconds=self._pace)
        if self._model_directory:
            self._model_engine = _load_engine(self._model_directory, self._model_runs_on, niceness=_MODEL_NICENESS)

    async def warm_up(self) -> None:
        """Has every engine generate one token: what starting takes is in no run's time."""
        engines = [engine for engine in (self._policy_engine, self._model_engine) if engine is not None]
        sampling = Sampling(max_tokens=1)
        await asyncio.gather(*[_first_token(engine, sampling) for engine in engines])

    def make_policy(self) -> Policy:
        """The policy of one run."""
        if self._policy_engine is None:
            return CallablePolicy(self._consult)
        _empty_caches(self._policy_engine, self._policy_runs_on)
        return load_policy(self._policy, engine=self._policy_engine, sampling=self._sampling)

    def make_world_model(self) -> WorldModel:
        """The world model of one run; it has seen nothing yet."""
        models: list[WorldModel] = [MemoryWorldModel()] if self._remembers else []
        if self._model_engine is not None and self._model is not None:
            _empty_caches(self._model_engine, self._model_runs_on)
            models.append(load_world_model(self._model, engine=self._model_engine))
        return models[0] if len(models) == 1 else CascadeWorldModel(models)

    async def _consult(self, history: History, seed: int) -> Action:
        """The expert's next command, after some thinking."""
        if self._think:
            await asyncio.sleep(self._think)
        expert = self._suite.expert(self._tasks[history.episode.task_id])
        command = next(expert)
        for turn in history.turns:
            try:
                command = expert.send(turn.observation)
            except StopIteration:
                return SUBMIT  # only in a future in which the world model denies that it was handed in already
        return command

    def close(self) -> None:
        """Closes the engines. Idempotent."""
        for engine in (self._policy_engine, self._model_engine):
            if engine is not None:
                engine.close()

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def require_torch() -> None:
    """Tells before anything is started if what runs language models is not installed.

    Raises:
        MissingExtraError: If it is not.
    """
    for module in ("torch", "transformers"):
        if not installed(module):
            raise MissingExtraError(module, "lm")


def installed(module: str) -> bool:
    """Whether a module can be imported; imports nothing of it."""
    from importlib.util import find_spec

    return find_spec(module) is not None


def _parts(world_model: str) -> tuple[bool, str | None]:
    """Whether there is a memory, and which language model."""
    if world_model in (NONE, MEMORY):
        return world_model == MEMORY, None
    if world_model == "cascade":
        return True, "shipped"
    if world_model.startswith(_MEMORY_AND):
        return True, world_model.removeprefix(_MEMORY_AND)
    return False, world_model


async def _first_token(engine: Engine, sampling: Sampling) -> None:
    await engine.submit([0], sampling, seed=0)


def _empty_caches(engine: Engine, name: str) -> None:
    """No run is faster for what an earlier one left; but servers are others', and remember what they like."""
    if not server_urls(name):
        engine.update_weights()  # the same weights: what this does is empty the caches


def _load_engine(directory: Path, name: str, niceness: int = 0, step_seconds: float = 0.0) -> Engine:
    """An engine in a process of its own, made from what can be read again: so its caches can be emptied."""
    _keep_temporary_directory_clean()
    if name != "transformers":
        return load_engine(directory, engine=name)
    from transformers.utils.logging import disable_progress_bar

    from obsspec_gym.agents.engine.transformers import TransformersEngine

    disable_progress_bar()  # type: ignore[no-untyped-call]
    return TransformersEngine(load_model(directory), driver="process", niceness=niceness, step_seconds=step_seconds)


def _keep_temporary_directory_clean() -> None:
    """Importing torch makes a directory for its compiler's cache, in the temporary one unless told otherwise."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch" / "inductor"
    try:
        caches.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(caches))
