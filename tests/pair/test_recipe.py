"""The recipe of the shipped pair, in its parts: masks, mistakes, batches, optimiser, and one miniature run."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from agents.average import main as average
from agents.corpus import SLOW, Episode, Example, Turn, command_of, dialogue, encode, load, save
from agents.noise import mistake
from agents.optimizer import orthogonal
from agents.recipe import Command, Steps
from agents.record import Player
from agents.train import batches, rate_at, tensors
from obsspec_gym.agents.loading import SHIPPED, load_model
from obsspec_gym.envs.tasks import get_suite
from obsspec_gym.envs.tasks.generated import FAMILIES

ROOT = Path(__file__).parents[2]
OK = "[exit 0] ~"
EPISODE = Episode(
    "basics/config/10000",
    "Fix it.",
    (
        Turn("ls", f"a\n{OK}", True, 0.1),
        Turn("cat b", "no\n[exit 1] ~", False, 0.1),
        Turn("submit", "[submitted]", True, 0.0),
    ),
    reward=1.0,
    submitted=True,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SHIPPED / "policy" / "tokenizer.json"))


def written(tokenizer: Tokenizer, example: Example, mask: list[float]) -> str:
    return tokenizer.decode([i for i, kept in zip(example.ids, mask, strict=True) if kept], skip_special_tokens=False)


def test_an_episode_is_the_compact_dialogue(tokenizer: Tokenizer) -> None:
    example = encode(EPISODE, tokenizer)
    assert tokenizer.decode(example.ids, skip_special_tokens=False) == (
        f"<|task|>Fix it.<|act|>ls<|end|><|obs|>a\n{OK}<|act|>cat b<|end|><|obs|>no\n[exit 1] ~"
        "<|act|>submit<|end|><|obs|>[submitted]<|end|>"
    )


def test_the_policy_learns_taught_commands_and_the_world_model_what_comes_back(tokenizer: Tokenizer) -> None:
    example = encode(EPISODE, tokenizer)
    assert written(tokenizer, example, example.policy) == "ls<|end|>submit<|end|>"
    assert written(tokenizer, example, example.world) == f"a\n{OK}<|act|>no\n[exit 1] ~<|act|>[submitted]<|end|>"


def test_a_policy_reads_while_recording_what_it_was_trained_on(tokenizer: Tokenizer) -> None:
    example = encode(EPISODE, tokenizer)
    steps = [(turn.command, turn.observation) for turn in EPISODE.turns]
    for number, (command, _) in enumerate(steps):
        prompt = dialogue(tokenizer, EPISODE.instruction, steps[:number])
        assert example.ids[: len(prompt)] == prompt
        written = example.ids[len(prompt) :]
        assert command_of(tokenizer, written[: written.index(tokenizer.token_to_id("<|end|>")) + 1]) == command


def test_a_command_has_no_nul(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ls\0 x", add_special_tokens=False).ids
    assert command_of(tokenizer, ids) == "ls x"


def test_every_family_has_one_slow_program() -> None:
    for family in FAMILIES.values():
        files = get_suite(f"terminal/{family.name}").task(10_000).files
        assert len(SLOW & {f"./{path}" for path in files}) == 1, family.name


def test_recording_takes_suites_in_turn_and_a_policy_repeats_itself(tmp_path: Path) -> None:
    def episodes(name: str) -> list[Episode]:
        files = ["--policy", SHIPPED / "policy", "--out", tmp_path / name, "--sandbox", "local"]
        numbers = ["--first", "10015", "--count", "2", "--work", "0.01", "--workers", "1", "--share", "0.8"]
        command = [sys.executable, "-m", "agents.record", "--suite", "basics", "terminal", *numbers, *map(str, files)]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
        return list(load(tmp_path / name))

    first, again = episodes("first"), episodes("again")
    assert [episode.task_id for episode in first] == ["terminal/order/10015@0.01", "basics/tests/10016@0.01"]
    for one, other in zip(first, again, strict=True):
        assert [turn.command for turn in one.turns] == [turn.command for turn in other.turns]
    assert any(turn.taught for episode in first for turn in episode.turns)


def test_where_an_episode_is_longer_than_the_context_the_expert_acts() -> None:
    task = get_suite("basics").task(10_000)
    lives: Any = [SimpleNamespace(task=task, transcript=[("cat a", "word " * words)] * 2) for words in (5, 3000)]
    with closing(Player(SHIPPED / "policy", seed=0, share=1.0, temperature=0.0)) as player:
        own, experts = player(lives, ["never written", "never written"])
    assert own != "never written"
    assert experts == "never written"


def test_an_unsolved_episode_teaches_no_commands_and_a_cut_one_no_end(tokenizer: Tokenizer) -> None:
    cut = Episode(EPISODE.task_id, "Fix it.", EPISODE.turns[:1], reward=0.0, submitted=False)
    example = encode(cut, tokenizer)
    assert not any(example.policy)
    assert written(tokenizer, example, example.world) == f"a\n{OK}"


def test_episodes_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    save([EPISODE, EPISODE], tmp_path / "episodes.jsonl")
    assert list(load(tmp_path / "episodes.jsonl")) == [EPISODE, EPISODE]


def test_mistakes_are_made_from_the_seed_and_mostly_are_some() -> None:
    command, seen = "sed -i 's/41/14/' alpha.sh", [("ls", f"alpha.sh\nbeta.sh\nrun_tests\n{OK}")]
    made = [mistake(Random(seed), command, seen) for seed in range(100)]
    assert made == [mistake(Random(seed), command, seen) for seed in range(100)]
    assert sum(other != command for other in made) > 90
    assert len(set(made)) > 40


def test_batches_hold_every_example_once_an_epoch_and_keep_to_their_size() -> None:
    examples = [Example([1] * (5 + i % 30), [], []) for i in range(200)]
    source, seen = batches(examples, 128, Random(0)), []
    while len(seen) < 200:
        batch = next(source)
        assert len(batch) * max(len(example.ids) for example in batch) <= 128
        seen += batch
    assert sorted(map(id, seen)) == sorted(map(id, examples))


def test_weights_are_of_the_role_and_a_little_of_the_other(tokenizer: Tokenizer) -> None:
    example = encode(EPISODE, tokenizer)
    _, weights = tensors([example, Example([1] * 99, [0.0] * 99, [1.0] * 99)], "policy", 0.25, 0)
    assert weights.shape == (2, 99)
    assert weights[0].sum() == sum(example.policy) + 0.25 * sum(example.world)
    assert weights[1].sum() == 0.25 * 99


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8), (1, 12, 12)])
def test_an_orthogonal_update_has_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
    assert values.max() < 1.3
    assert values.median() > 0.6


def test_the_rate_warms_up_holds_and_decays() -> None:
    rates = [rate_at(step, 1000, 0.4) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 40)
    assert rates[100:600] == [1.0] * 500
    assert rates[600:] == sorted(rates[600:], reverse=True)
    assert 0 < rates[-1] < 0.01
    assert rate_at(999, 1000, 0.0) == 1.0


def test_slow_programs_count_more_for_the_world_model_only(tokenizer: Tokenizer) -> None:
    episode = replace(EPISODE, turns=(Turn("./check", f"a\n{OK}", True, 0.1), *EPISODE.turns))
    plain, weighted = encode(episode, tokenizer), encode(episode, tokenizer, slow=4.0)
    assert weighted.policy == plain.policy
    assert [weight > 0 for weight in weighted.world] == [weight > 0 for weight in plain.world]
    assert written(tokenizer, weighted, [float(weight == 4) for weight in weighted.world]) == f"a\n{OK}<|act|>"


def test_steps_run_what_is_missing_in_order_and_stop_the_rest_when_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "import sys, time",
        "time.sleep(float(sys.argv[1]))",
        "open(sys.argv[2], 'x').close()",
        "sys.exit(sys.argv[3] != '0')",
    )
    (tmp_path / "pretended.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    steps = Steps(tmp_path)

    def command(name: str, seconds: float = 0, status: int = 0) -> Command:
        return tmp_path / name, ["pretended", str(seconds), str(tmp_path / name), str(status)]

    steps("two sides", [command("a"), command("b")], [command("c")])
    assert {path.name for path in tmp_path.glob("?")} == set("abc")
    steps("done before", [command("b"), command("a")])
    with pytest.raises(SystemExit, match=r"pretended .* failed with exit status 1"):
        steps("fails", [command("d", status=1), command("e")], [command("f", seconds=300)])
    assert {path.name for path in tmp_path.glob("?")} == set("abcd")
    assert set(json.loads((tmp_path / "seconds.json").read_text())) == {"two sides"}


def test_a_miniature_training_runs_from_file_to_model(tmp_path: Path) -> None:
    save([EPISODE] * 24, tmp_path / "episodes.jsonl")
    files = ["--data", tmp_path / "episodes.jsonl", "--tokenizer", SHIPPED / "policy", "--out", tmp_path / "out"]
    command = [sys.executable, "-m", "agents.train", "world", "--steps", "3", "--tokens", "256", *map(str, files)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    log = json.loads((tmp_path / "out" / "training.json").read_text())["log"]
    assert log[-1]["loss"] < log[0]["loss"]
    assert (tmp_path / "out" / "model.safetensors").stat().st_size < 6_000_000


def test_models_are_averaged_by_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out is a model with tokenizer and log; the more often a model is named, the more it counts."""
    source = load_model(SHIPPED / "world_model")
    folders = [tmp_path / name for name in ("first", "second")]
    for folder, factor in zip(folders, (1.0, 4.0), strict=True):
        shutil.copytree(SHIPPED / "world_model", folder)
        scaled = {name: tensor * factor for name, tensor in source.state_dict().items()}
        source.save_pretrained(folder, state_dict=scaled)
        (folder / "training.json").write_text(json.dumps({"role": "world", "seed": int(factor)}))
    out = tmp_path / "mean"
    monkeypatch.setattr(sys, "argv", ["average", *map(str, [folders[0], *folders]), "--out", str(out)])
    average()
    found = load_model(out).state_dict()
    for name, tensor in source.state_dict().items():
        torch.testing.assert_close(found[name], 2 * tensor)
    assert json.loads((out / "training.json").read_text()) == {"role": "world", "seed": 1}
    assert (out / "tokenizer.json").read_bytes() == (SHIPPED / "world_model" / "tokenizer.json").read_bytes()


def test_one_model_is_no_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["average", str(tmp_path), "--out", str(tmp_path / "mean")])
    with pytest.raises(SystemExit, match="2"):
        average()
    assert not (tmp_path / "mean").exists()
