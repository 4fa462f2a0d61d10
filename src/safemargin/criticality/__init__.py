"""True criticality (Algorithm 1): perturbed rollouts from saved states, and when to stop them.

`rollouts` runs one policy in one simulator, `perturbations` says what takes the place of its
actions, `reference` who acts after them, `batch` runs many trials in lock-step, `coalescing` merges
trials that reach the same state, `replaying` plays recorded actions again and checks them, `plans`
chooses the random numbers of the trials and `stopping` ends them; `estimation` puts these together
for one moment, and `one_moment` does so without a study. `regret` derives from the same trials
where the agent itself is wrong, and `repeatable` how much of that is luck. `signals` says what is
lost.

To add a way to stop trials, write a `StoppingRule` in `stopping`, choose it in `plans.rule_of`, and
name it in `TrialPlan` in `core.settings`. To add a perturbation, see `perturbations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.criticality.one_moment import true_criticality as true_criticality

__getattr__, __dir__, __all__ = lazy_names(__name__)
