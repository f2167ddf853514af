"""Training: one loop from a laptop to a cluster, killed and resumed to the bit.

>>> from tokenmix.training import RunConfig, train
>>> result = train(RunConfig.of({"out": "runs/a", "model": {"name": "remixer-tiny"}, "data": {"task": "scan"}}))
>>> result.metrics
{'exact_match': 99.2, 'loss': 0.01}
"""

from tokenmix.training.config import RunConfig
from tokenmix.training.faults import TrainingFault
from tokenmix.training.presets import list_training_presets, training_preset
from tokenmix.training.progress import Callback, ConsoleProgress
from tokenmix.training.run import RunResult, train

__all__ = [
    "Callback",
    "ConsoleProgress",
    "RunConfig",
    "RunResult",
    "TrainingFault",
    "list_training_presets",
    "train",
    "training_preset",
]
