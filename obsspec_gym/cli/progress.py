"""What is shown while it runs: bars on a terminal, lines elsewhere. Always on stderr; stdout is for results."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from obsspec_gym.speculation.record import TurnRecord
from obsspec_gym.speculation.trajectory import Trajectory


class EpisodeProgress:
    """Counts the episodes of one run after another.

    Args:
        episodes: How many each run has.
        quiet: Whether to show nothing.
    """

    def __init__(self, episodes: int, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._episodes = episodes
        self._bars = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("episodes  {task.fields[turns]} turns, {task.fields[solved]} solved"),
            TimeElapsedColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._run: TaskID | None = None
        self._name = ""
        self._turns = self._solved = self._finished = 0

    def say(self, text: str) -> None:
        """Shows one line."""
        self._console.print(text, highlight=False, markup=False)

    def begin(self, name: str) -> None:
        """A run begins."""
        self._stop_bar()
        self._name, self._turns, self._solved, self._finished = name, 0, 0, 0
        self._run = self._bars.add_task(name, total=self._episodes, turns=0, solved=0)
        if self._bars.disable:
            self.say(f"{name}: {self._episodes} episodes")

    def turn(self, turn: TurnRecord) -> None:
        """A turn was decided."""
        self._turns += 1
        self._show()

    def trajectory(self, trajectory: Trajectory) -> None:
        """An episode has ended."""
        self._finished += 1
        self._solved += trajectory.reward > 0
        self._show()
        if self._bars.disable and self._finished == self._episodes:
            self.say(f"{self._name}: {self._turns} turns, {self._solved} of {self._episodes} episodes solved")

    def _show(self) -> None:
        if self._run is not None:
            self._bars.update(self._run, completed=self._finished, turns=self._turns, solved=self._solved)

    def _stop_bar(self) -> None:
        if self._run is not None:
            self._bars.stop_task(self._run)

    def __enter__(self) -> EpisodeProgress:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop_bar()
        self._bars.stop()
