"""A configuration is checked as a whole before anything is loaded, and then becomes a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.training.config import parse_config, read_config
from obsspec_gym.training.grpo_options import make_grpo_config, typed
from obsspec_gym.training.training import Training

SHIPPED = sorted((Path(__file__).parents[2] / "training").glob("*.yaml"))
ON_CPU = {"use_cpu": True, "bf16": False, "activation_checkpointing": False}


def training(**options: Any) -> Training:
    return Training(parse_config({"grpo": ON_CPU, **options}))


def test_every_shipped_configuration_is_checked_on_any_machine() -> None:
    assert [path.stem for path in SHIPPED] == ["cpu", "multi_gpu", "one_gpu"]
    for path in SHIPPED:
        shipped = Training(read_config(path))
        assert shipped.grpo.max_steps > 0
        assert shipped.out == Path("runs") / path.stem
        needed = shipped.grpo.max_steps * shipped.grpo.generation_batch_size / shipped.grpo.num_generations
        assert len(shipped.config.tasks.indices) >= needed, "a task is played once"
    assert Training(read_config(SHIPPED[0])).not_here is None


def test_values_are_of_the_type_that_trl_declares() -> None:
    assert typed({"learning_rate": "1e-4", "max_steps": "3"}) | {} == {
        "output_dir": "runs/train",
        "logging_steps": 1.0,
        "report_to": "none",
        "disable_tqdm": True,
        "learning_rate": 1e-4,
        "max_steps": 3,
    }
    config, lacks = make_grpo_config({**ON_CPU, "learning_rate": "1e-4", "report_to": ["tensorboard"]})
    assert config.learning_rate == 1e-4
    assert config.report_to == ["tensorboard"]
    assert lacks is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"grpo": {"learning_rat": 1}}, "there is no option grpo.learning_rat; did you mean grpo.learning_rate?"),
        ({"grpo": {"max_steps": "many"}}, "grpo.max_steps: input should be a valid integer"),
        (
            {"grpo": {**ON_CPU, "num_generations": 7}},
            r"generation_batch_size \(8\) must be divisible by num_generations",
        ),
        ({"grpo": {**ON_CPU, "use_vllm": True}}, "use_vllm must be False"),
        ({"suite": "nonsense"}, "unknown suite 'nonsense'"),
        ({"tasks": {"first": 9_999}}, "tasks.first must be >= 10000: tasks below are for evaluation, got 9999"),
        ({"policy": "/nonsense"}, "expected 'shipped' or a directory with a config.json, got '/nonsense'"),
        ({"world_model": {"source": "memory+/nonsense"}}, "a directory with a config.json, got '/nonsense'"),
        ({"world_model": {"options": {"sur": 1}}}, "there is no option world_model.options.sur; did you mean"),
        (
            {"world_model": {"engine": {"options": {"divice": 1}}}},
            "no option world_model.engine.options.divice; did you",
        ),
        ({"engine": {"options": {"drivr": 1}}}, "there is no option engine.options.drivr; did you mean"),
        ({"engine": {"kind": "steam"}}, "got 'steam'"),
        ({"cotraining": {"stps": 1}}, "there is no option cotraining.stps; did you mean cotraining.steps?"),
        ({"cotraining": {"steps": 0}}, "steps must be a number > 0, got 0"),
        ({"cotraining": {"steps": "few"}}, "cotraining.steps: input should be a valid integer"),
        ({"cotraining": {}, "world_model": {"source": "memory"}}, "cotraining needs a world_model with a language"),
        ({"terminals": {"sandbox": "vm"}}, "'vm'"),
        ({"terminals": {"latency": "slow"}}, "a latency is 'none', 'remote' or"),
        ({"terminals": {"sandbox_options": {"dsk": 1}}}, "dsk"),
    ],
)
def test_what_cannot_be_had_is_told_before_anything_is_loaded(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence) as refusal:
        training(**options)
    assert "\n" not in str(refusal.value).strip()
