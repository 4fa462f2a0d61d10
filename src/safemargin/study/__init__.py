"""A study on disk (Algorithm 2), from the first episode to margins.

`study` is the public class; `creation`, `parts`, `provenance` and `signing` are about what it is
made of. `collection` runs the `passes`, with `selection` between them, and writes to the `store`.
All SQL is in `store`, `reading` and `schema`; `blobs`, `folders` and `disk_faults` handle its
arrays, its lock and its errors, and `evidence` checks estimates against raw returns.

`tuples`, `grouping`, `single_runs`, `loss_statistics` and `restop` read arrays for a fit, and
`judging` fits, validates and compares. `learning` learns a proxy from the `lessons`, whose moments
`kinship` groups, and `learning_rankings` rankings by the `regrets` of measured moments. `status`,
`plays`, `rare_losses`, `noise` and `findings` describe the data; `costs`, `forecast`, `pilot`,
`planning` (`planning_several` for several mistakes) and `suggestions` say what a collection will
cost; `plot_info` and `plots` draw it, and `export` writes tables and `minari` datasets of episodes,
`tracking` logs to TensorBoard and its like, `shown` is for notebooks. `fidelity` tests rankings of
steps, one of which a `return_model` learns, `gating` compares two studies, as `pytest_plugin` does
in a test, and `tracing` studies the checkpoints of a training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.study.fidelity import measure_fidelity as measure_fidelity
    from safemargin.study.gating import gate as gate
    from safemargin.study.planning import CostPlan as CostPlan
    from safemargin.study.planning import plan_study as plan_study
    from safemargin.study.study import Study as Study

__getattr__, __dir__, __all__ = lazy_names(__name__)
