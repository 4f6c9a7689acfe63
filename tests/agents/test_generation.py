"""Generation: who waits, who cancels, and what reaches the engine."""

from __future__ import annotations

import asyncio
import gc

import pytest

from obsspec_gym.agents.generation import Generation
from obsspec_gym.errors import EngineError, GenerationCancelled
from obsspec_gym.types import Completion

DONE = Completion(token_ids=(1, 2), logprobs=(-0.1, -0.2))


class Recorder:
    """Stands for whatever computes."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.cancels = 0
        self.promotions = 0

    def generation(self) -> Generation:
        return Generation(self.future, self._cancel, self._promote)

    def _cancel(self) -> None:
        self.cancels += 1

    def _promote(self) -> None:
        self.promotions += 1


def test_gives_its_completion_to_everyone_who_waits() -> None:
    async def main() -> None:
        recorder = Recorder()
        generation = recorder.generation()
        waiting = [asyncio.create_task(_await(generation)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not generation.done()
        with pytest.raises(asyncio.InvalidStateError):
            generation.result()
        recorder.future.set_result(DONE)
        assert await asyncio.gather(*waiting) == [DONE] * 3
        assert generation.result() is DONE
        assert await generation is DONE, "and to who comes late"
        assert not generation.cancelled()

    asyncio.run(main())


def test_cancelling_who_waits_does_not_cancel_the_generation() -> None:
    async def main() -> None:
        recorder = Recorder()
        generation = recorder.generation()
        waiting = asyncio.create_task(_await(generation))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not generation.done()
        assert recorder.cancels == 0
        recorder.future.set_result(DONE)
        assert await generation is DONE

    asyncio.run(main())


def test_cancel_reaches_the_engine_once_and_wakes_who_waits() -> None:
    async def main() -> None:
        recorder = Recorder()
        generation = recorder.generation()
        waiting = asyncio.create_task(_await(generation))
        await asyncio.sleep(0)
        generation.cancel()
        generation.cancel()
        assert (generation.done(), generation.cancelled(), recorder.cancels) == (True, True, 1)
        with pytest.raises(GenerationCancelled):
            await waiting
        with pytest.raises(GenerationCancelled):
            generation.result()

    asyncio.run(main())


def test_cancelling_what_is_done_changes_nothing() -> None:
    async def main() -> None:
        recorder = Recorder()
        generation = recorder.generation()
        recorder.future.set_result(DONE)
        generation.cancel()
        generation.promote()
        assert (generation.result(), generation.cancelled()) == (DONE, False)
        assert (recorder.cancels, recorder.promotions) == (0, 0)

    asyncio.run(main())


def test_promotes_what_is_under_way() -> None:
    async def main() -> None:
        recorder = Recorder()
        generation = recorder.generation()
        generation.promote()
        assert recorder.promotions == 1
        generation.cancel()
        generation.promote()
        assert recorder.promotions == 1
        Generation(asyncio.get_running_loop().create_future()).promote()  # nobody to tell

    asyncio.run(main())


def test_an_error_is_raised_to_who_waits_and_is_not_a_cancellation() -> None:
    async def main() -> None:
        recorder = Recorder()
        generation = recorder.generation()
        recorder.future.set_exception(EngineError("out of memory"))
        with pytest.raises(EngineError, match="out of memory"):
            await generation
        assert generation.done()
        assert not generation.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("outcome", ["error", "cancel"])
def test_a_discarded_generation_may_fail_unseen(outcome: str) -> None:
    """Nobody awaits it; the event loop must not report an exception that was never retrieved."""
    reports: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
        recorder = Recorder()
        generation = recorder.generation()
        if outcome == "error":
            recorder.future.set_exception(EngineError("unseen"))
        else:
            generation.cancel()
        await asyncio.sleep(0)
        del recorder, generation
        gc.collect()

    asyncio.run(main())
    assert reports == []


def test_callbacks_run_when_it_is_done_or_cancelled() -> None:
    async def main() -> None:
        called: list[str] = []
        first, second = Recorder(), Recorder()
        done, cancelled = first.generation(), second.generation()
        done.add_done_callback(lambda: called.append("done"))
        cancelled.add_done_callback(lambda: called.append("cancelled"))
        first.future.set_result(DONE)
        cancelled.cancel()
        await asyncio.sleep(0)
        done.add_done_callback(lambda: called.append("late"))
        await asyncio.sleep(0)
        assert called == ["done", "cancelled", "late"]

    asyncio.run(main())


async def _await(generation: Generation) -> Completion:
    return await generation


def test_cancel_reaches_the_engine_also_when_the_event_loop_has_ended() -> None:
    """A generation outlives its loop where somebody forgot it: what computes must not go on for it."""
    loop = asyncio.new_event_loop()
    told: list[bool] = []
    generation = Generation(loop.create_future(), cancel=lambda: told.append(True))
    loop.close()
    generation.cancel()
    generation.cancel()
    assert told == [True]
