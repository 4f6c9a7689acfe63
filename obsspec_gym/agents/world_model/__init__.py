"""World models: what will the tool answer?

::

    base.py         the protocol
    memory.py       what came the last times; effects.py knows which commands change anything
    tabular.py      what followed the last observation and the action, counted
    lm.py           a language model that writes observations
    cascade.py      memory first, model on a miss
    calibration.py  from a source's confidence to the probability of an exact match
    partial.py      what can still come of output that is already there
    loading.py      world models by name
"""

from obsspec_gym.agents.world_model.base import WorldModel
from obsspec_gym.agents.world_model.calibration import Calibration, Calibrator
from obsspec_gym.agents.world_model.cascade import CascadeWorldModel, Checkpointable
from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.agents.world_model.loading import load_world_model
from obsspec_gym.agents.world_model.memory import MemoryWorldModel
from obsspec_gym.agents.world_model.tabular import TabularWorldModel

__all__ = [
    "Calibration",
    "Calibrator",
    "CascadeWorldModel",
    "Checkpointable",
    "LMWorldModel",
    "MemoryWorldModel",
    "TabularWorldModel",
    "WorldModel",
    "load_world_model",
]
