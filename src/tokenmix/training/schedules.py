"""Learning rates of the papers as one pure function of the step.

    constant       lr · min(1, (1 − (t − 1) / T) / d)
                                                     d: the share of the T steps, at their end, in which it falls to 0
    linear         lr · (1 − p)                      p: the share of the steps after warm-up that is done
    cosine         lr · (1 + cos πp) / 2
    inverse_sqrt   lr / √max(t, w)                   t: step from 1, w: warm-up; T5's is lr = 1, w = 10⁴, ramp = False

All but T5's rise linearly through the warm-up: times min(1, t / w).

>>> rate = learning_rate(ScheduleConfig(name="inverse_sqrt", warmup=10_000, ramp=False), lr=1.0, step=0, total=10**6)
>>> rate
0.01
"""

from __future__ import annotations

import math

from tokenmix.naming import unknown
from tokenmix.training.config import ScheduleConfig

SCHEDULES = ("constant", "linear", "cosine", "inverse_sqrt")


def learning_rate(schedule: ScheduleConfig, lr: float, step: int, total: float) -> float:
    """The rate of the update after ``step`` updates were made, in a run of ``total`` (an estimate will do)."""
    warmup = schedule.warmup * total if 0 < schedule.warmup < 1 else schedule.warmup
    t = step + 1
    rise = min(1.0, t / warmup) if warmup > 0 else 1.0
    if schedule.name == "inverse_sqrt":
        return lr * (rise if schedule.ramp else 1.0) / math.sqrt(max(t, warmup, 1.0))
    if schedule.name == "constant":
        fall = min(1.0, max(0.0, 1.0 - step / total) / schedule.decay) if schedule.decay > 0 else 1.0
        return lr * rise * fall
    done = min(1.0, max(0.0, (step - warmup) / max(total - warmup, 1.0)))
    if schedule.name == "linear":
        return lr * rise * (1.0 - done)
    if schedule.name == "cosine":
        return lr * rise * (1.0 + math.cos(math.pi * done)) / 2.0
    raise unknown("schedule", schedule.name, SCHEDULES)
