"""Questions to a world model: each is answered, has failed or is given up, at its own deadline."""

from __future__ import annotations

import asyncio

from obsspec_gym.agents.fakes import ScriptedWorldModel
from obsspec_gym.agents.history import History
from obsspec_gym.speculation.clock import run_virtual
from obsspec_gym.speculation.predictor import Patience, Predictor
from obsspec_gym.types import Action, EpisodeId, Prediction

START = History.start(EpisodeId("task"), "go")


async def behave(history: History, action: Action, n: int, partial: str) -> list[Prediction]:
    if action == "hang":
        await asyncio.sleep(1e9)
    if action == "ignore":
        while True:
            try:
                await asyncio.sleep(20)
                break
            except asyncio.CancelledError:
                continue
    if action == "break":
        raise RuntimeError("broken")
    await asyncio.sleep(2)
    return [Prediction("out"), Prediction("out"), Prediction("other")][:n]


def test_every_question_has_its_own_deadline() -> None:
    async def main() -> None:
        clock = asyncio.get_running_loop().time
        delivered: list[tuple[str, float, int]] = []
        predictor = Predictor(ScriptedWorldModel(behave), Patience(deadline=5.0, failures=9))
        questions = []
        for action in ("hang", "ls", "ignore", "given up", "break"):
            question = predictor.ask(
                START.act(action), 3, lambda found, action=action: delivered.append((action, clock(), len(found)))
            )
            assert question is not None
            questions.append(question)
            await asyncio.sleep(1)
            if action == "given up":
                question.cancel()
        await asyncio.sleep(0.5)  # at 5.5
        late = "no prediction within 5 s"
        assert delivered == [("ls", 3.0, 2)]
        assert predictor.failures == {"RuntimeError: broken": 1, late: 1}
        await asyncio.sleep(20)  # whatever the one that ignores its cancellation says, nobody hears it
        assert predictor.failures == {"RuntimeError: broken": 1, late: 2}
        assert delivered == [("ls", 3.0, 2)]
        assert all(question.done() for question in questions)
        predictor.close()
        predictor.close()

    run_virtual(main())


def test_one_that_fails_in_a_row_is_left_alone() -> None:
    async def main() -> None:
        predictor = Predictor(ScriptedWorldModel(behave), Patience(failures=2, pause=10.0))
        for _ in range(2):
            assert predictor.ask(START.act("break"), 1, list.clear) is not None
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert predictor.open
        assert predictor.ask(START.act("ls"), 1, list.clear) is None
        await asyncio.sleep(10.0)
        assert predictor.ask(START.act("ls"), 1, list.clear) is not None
        predictor.close()

    run_virtual(main())
