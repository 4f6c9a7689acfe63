"""Futures: the generations under way for the histories that may become real, as a tree keyed by history.

The root is the history that *is* real. A child extends its parent by the parent's action and one predicted
observation. When the real observation arrives the real history is looked up: if it is there its subtree becomes the
tree, and everything else is cancelled at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.speculation.predictor import Question
from obsspec_gym.speculation.selector import Budget
from obsspec_gym.types import Completion, Prediction


class Future:
    """One possible (or, at the root, real) history and the generation of the action that follows it.

    Attributes:
        history: Ends in an observation; the generation is conditioned on exactly this.
        generation: The next action's generation; ``None`` where the episode is predicted to end, or the selector
            declined.
        prediction: What put it here; ``None`` at a root that was never predicted.
        rank: The prediction's place among those of the same outcome, from 0.
        chance: The probability with which it is taken to come true, given what is real; 0 where the selector
            declined to generate on it.
        prediction_started: Clock time at which the action before the predicted observation was known, and the world
            model was asked.
        prediction_ready: Clock time at which the prediction was there.
        started: Clock time at which the generation was submitted.
        committed: Clock time at which the history became real; its submission's for one that was real at once.
        children: The futures after this one's action, by key.
        branching: The question what follows this future's action; ``None`` before it is put.
        given_up: Whether it can no longer come true: nothing grows on it any more.
        draft: Tokens that were given to the generation to verify.
    """

    __slots__ = ("branching", "chance", "children", "committed", "draft", "generation", "given_up", "history",
                 "prediction", "prediction_ready", "prediction_started", "rank", "started")  # fmt: skip

    def __init__(
        self,
        history: History,
        generation: Generation | None,
        now: float,
        prediction: Prediction | None = None,
        rank: int = 0,
        chance: float = 1.0,
    ) -> None:
        self.history = history
        self.generation = generation
        self.prediction = prediction
        self.rank = rank
        self.chance = chance
        self.started = self.committed = self.prediction_started = self.prediction_ready = now
        self.children: dict[bytes, Future] = {}
        self.branching: Question | None = None
        self.given_up = False
        self.draft = 0

    def begin(self, chance: float, generation: Generation, now: float) -> None:
        """Generates what was declined before."""
        self.chance, self.generation, self.started = chance, generation, now

    @property
    def usable(self) -> bool:
        """Whether a real history may continue this generation: it is there and has not failed."""
        return self.generation is not None and not self.generation.failed()

    def walk(self) -> Iterator[Future]:
        """This future and all below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def cancel(self) -> list[Future]:
        """Cancels everything from here down: predictions asked for, generations under way.

        Returns:
            The futures that were cancelled or discarded.
        """
        gone = list(self.walk())
        for future in gone:
            future.given_up = True
            if future.branching is not None:
                future.branching.cancel()
            if future.generation is not None:
                future.generation.cancel()
        return gone


class Futures:
    """The tree of one environment's futures.

    Args:
        root: The real history with its generation.
        max_futures: Bound on how many speculated futures are alive; beyond it none is added (giving one up is free:
            what it would have generated is generated when it is needed, I2a).

    Attributes:
        budget: How far the present turn may speculate.
        began: Clock time at which the present turn's tool began.
    """

    def __init__(self, root: Future, max_futures: int = 64) -> None:
        self.root = root
        self.max_futures = max_futures
        self.size = 0
        self.budget = Budget(0, 1)
        self.began = 0.0

    def __len__(self) -> int:
        return self.size

    @property
    def full(self) -> bool:
        """Whether no further future fits."""
        return self.size >= self.max_futures

    def level(self, acted: History) -> int:
        """How many observations ahead of the real history the outcome of ``acted`` is, from 1."""
        return acted.turn - self.root.history.turn

    def add(self, parent: Future, child: Future) -> None:
        """Files a future under its parent; of two with the same history the one that generates stays."""
        same = parent.children.get(child.history.key)
        if same is not None and same.generation is not None:
            child.cancel()
            return
        parent.children[child.history.key] = child
        self.size += same is None

    def commit(self, real: History, ends: bool) -> tuple[Future | None, list[Future]]:
        """Makes the real history the root, if a future for it is there, and cancels the others.

        Args:
            real: The history that ends in the real observation.
            ends: Whether the episode is over: then nothing is kept (I1).

        Returns:
            The future that came true, now the root, or ``None``; and everything that was discarded.
        """
        came_true = self.root.children.get(real.key)
        kept = came_true if came_true is not None and came_true.usable and not ends else None
        discarded = self._discard_children(keep=kept)
        if kept is not None:
            reached = kept.chance
            for number, future in enumerate(kept.walk()):
                future.chance = min(1.0, future.chance / reached)  # given that this much has come true
                self.size = number
            self.root = kept
        return kept, discarded

    def replace_root(self, root: Future) -> None:
        """Starts a tree of its own from a real history that no future was there for."""
        self._discard_children(keep=None)
        self.root = root

    def drop(self) -> list[Future]:
        """Cancels every uncommitted future (I7): only the root stays."""
        return self._discard_children(keep=None)

    def close(self) -> list[Future]:
        """Cancels everything, the root's generation included."""
        discarded = self._discard_children(keep=None)
        if self.root.generation is not None:
            self.root.generation.cancel()
        return discarded

    def _discard_children(self, keep: Future | None) -> list[Future]:
        if self.root.branching is not None:
            self.root.branching.cancel()
            self.root.branching = None
        discarded = [future for child in self.root.children.values() if child is not keep for future in child.cancel()]
        self.root.children = {}
        self.size = 0
        return discarded


def completion_of(future: Future) -> Completion | None:
    """The future's completion if it is there."""
    generation = future.generation
    if generation is None or not generation.done() or generation.failed():
        return None
    return generation.result()
