"""A study: one environment, one policy and one settings, from the first episode to margins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Tuples
from safemargin.core.settings import Settings
from safemargin.engines import Device, Engine, EngineName, Job, check_engine, make_engine
from safemargin.engines.proof import prove
from safemargin.environments import EnvironmentSpec, Way
from safemargin.environments.doctor.returns import settings_for
from safemargin.environments.functional.naming import suited_to
from safemargin.errors import InvalidInput, did_you_mean
from safemargin.margins.bounds.table import Estimand, check_estimand
from safemargin.margins.learned.probe import refuse_ranking
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import DEFAULT_METHOD, Promise, method_for
from safemargin.policies.base import ScoreKind
from safemargin.policies.loading import load_policy, normalized
from safemargin.policies.proxies import Proxy
from safemargin.study import creation
from safemargin.study.collection import check_collect, collect
from safemargin.study.export import Exported
from safemargin.study.judging import compare_study, fit_study, minimum_bandwidth, validate_study
from safemargin.study.learning import Learned, learn
from safemargin.study.learning_rankings import LearnedRanking, learn_ranking
from safemargin.study.lessons import refuse_labels
from safemargin.study.parts import Parts
from safemargin.study.provenance import refuse_other_proof
from safemargin.study.shown import Shown
from safemargin.study.signing import sign_again
from safemargin.study.status import Status, study_status
from safemargin.study.store import Store
from safemargin.study.tuples import not_empty, read_tuples
from safemargin.validation.comparison import Comparison
from safemargin.validation.validating import Validation

MakeEnvironment = Callable[[], gym.Env[Any, Any]]


class Study(Shown, Exported):
    """One environment + one policy + one settings, on disk."""

    def __init__(self, store: Store, parts: Parts) -> None:
        self.store = store
        """The database, for everything that reads it: report, explorer, highlights."""
        self._parts = parts
        self._named: Mapping[str, Any] | None = None
        """The entries of the study as the user named them now, for `sign_again`."""
        self._status: tuple[tuple[int, int], Status] | None = None
        """The last status, with the version of the database it belongs to."""
        self.settings = store.settings()

    # -- creating and opening ------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | Path,
        env: str | MakeEnvironment,
        policy: Any = None,
        settings: Settings | Mapping[str, Any] | None = None,
        *,
        env_arguments: Mapping[str, Any] | None = None,
        scores: ScoreKind | None = None,
        normalize: Any = None,
        proxies: Sequence[Proxy | str] = (),
        way: Way | None = None,
        progress: Progress | None = None,
    ) -> Study:
        """Make a new study, or open the one in `path` if it was made with the very same parts.

        `env` is for `EnvironmentSpec.parse`; `policy`, `scores` (as kind) and `normalize` are for
        `load_policy`; without a policy, the environment must come with one ('rl-zoo:FOLDER').
        `proxies` are recorded beside the built-in ones that apply; `way` is the only one to try
        ("snapshot" or "replay"). Settings that are a mapping without action_choice leave that to
        the policy. An environment that the doctor finds unmeasurable raises NotMeasurable and
        leaves no study.
        """
        spec = EnvironmentSpec.parse(env, dict(env_arguments) if env_arguments else None)
        spec, policy = spec.with_team(creation.policy_for(spec, policy))
        loaded = suited_to(spec, load_policy(policy, kind=scores, normalize=normalize))
        chosen = settings_for(loaded, settings)
        made_of = spec, loaded, normalized(policy, normalize), chosen, proxies
        store, named = creation.make_store(Path(path), *made_of, way=way, progress=progress)
        study = cls(store, Parts(store, spec, loaded, proxies, proven=True))
        study._named = named
        return study

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        env: str | MakeEnvironment | None = None,
        policy: Any = None,
        proxies: Sequence[Proxy | str] = (),
        trust: bool = False,
        perturb: str | None = None,
        signal: str | None = None,
    ) -> Study:
        """Open the study in a folder, about these mistakes and this loss (None: the first).

        `env` and `policy` are needed only to collect more into a study made from Python objects, or
        whose policy file has moved. With `trust`, code that somebody else's study names may run.
        """
        store = creation.open_about(Path(path), perturb, signal)
        parts = Parts(store, extra_proxies=proxies or None, trust=trust)
        if env is not None:
            parts.environment = EnvironmentSpec.parse(env)
        if policy is not None:
            parts.policy = load_policy(policy, kind=store.meta("policy")["kind"])
        return cls(store, parts)

    def __repr__(self) -> str:
        return (
            f"<Study {self.path}: {self.policy['description']} in {self.environment['name']}, "
            f"{sum(self.status().moments.values())} moments>"
        )

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self.store.close()

    # -- what it is ----------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self.store.folder

    @property
    def environment_spec(self) -> EnvironmentSpec:
        """How to make the environment; InvalidInput if the study cannot know."""
        return self._parts.environment_spec()

    def require_trust(self, *, policy: bool = True) -> None:
        """Raise UntrustedCode if the study names unsigned code; see `Parts.require_trust`."""
        self._parts.require_trust(policy=policy)

    @property
    def environment(self) -> dict[str, Any]:
        """Name, specification and identity of the environment."""
        return dict(self.store.meta("environment"))

    @property
    def policy(self) -> dict[str, Any]:
        """Description, kind of scores and identity of the policy."""
        return dict(self.store.meta("policy"))

    @property
    def measured(self) -> list[tuple[str, str]]:
        """Every perturbation and signal that it measures, the first ones first."""
        return self.store.measured_pairs()

    @property
    def proxies(self) -> list[str]:
        """The proxies recorded at every step."""
        return list(self.store.meta("proxies"))

    @property
    def default_proxy(self) -> str:
        """The proxy a fit uses by default: the one that spread the moments."""
        return str(self.store.meta("selection_proxy"))

    # -- collecting ----------------------------------------------------------------------------

    def collect(
        self,
        natural: int = 500,
        spread: int = 500,
        *,
        workers: int | None = None,
        engine: EngineName | None = None,
        address: str | None = None,
        gpus_per_worker: float = 0.0,
        device: Device | None = None,
        more: Sequence[tuple[str, str]] = (),
        progress: Progress | None = None,
    ) -> Status:
        """Run Algorithm 2 until the study holds this many fully measured moments of each phase.

        Existing moments are kept; call it again to resume. `workers` (None: one per core) run on an
        `engine`, "local", "processes" or "ray"; `address` and `gpus_per_worker` are for Ray. A
        study in JAX runs on engine "jax", on its best `device`. None of these changes the result,
        except that a GPU rounds otherwise. `more` names other perturbations and signals to measure
        at the same moments. A wrong diagnosis is corrected with a warning (DiagnosisCorrected).
        """
        check_collect(natural, spread, workers)
        options: Any = {"workers": workers, "address": address, "gpus_per_worker": gpus_per_worker}
        options["device"] = device
        check_engine(engine, **options)
        with self.store.writing(), contextlib.ExitStack() as stack:
            if self._named is not None:
                sign_again(self.store, self._named)
            others = creation.with_more(self.store, more, self._parts.environment_spec())
            stores = [self.store, *map(stack.enter_context, others)]
            collect(
                stores,
                lambda: self.open_engine(engine, stores=stores, **options),
                natural=natural,
                spread=spread,
                progress=progress or Silence(),
            )
        return self.status()

    def learn(
        self,
        *,
        target: str = "losses",
        labels: int = 0,
        tolerance: float | None = None,
        promise: Promise = "bound",
        confidence: float = 0.95,
        traces: bool = True,
        engine: EngineName | None = None,
        progress: Progress | None = None,
        **on: Any,
    ) -> Learned | LearnedRanking:
        """Learn a proxy from the measured moments, and store it as 'learned'.

        A target "regret" or "stakes" learns a ranking of decisions instead, 'learned-regret'.
        `labels` first collects this many cheap labels: moments of other games with few trials, for
        training only. Models are compared by what `promise` grants at `tolerance` (None: three that
        tell moments apart), and stored if better than other proxies. With `traces` the proxy is
        recorded along all episodes, for pages and simulations. `engine` and `on`: as in `collect`.
        """
        check_engine(engine, **on)
        self._enough(None)

        def open_engine(store: Store) -> contextlib.AbstractContextManager[Engine]:
            if store is not self.store:  # labels, which know only what they were made with
                refuse_other_proof(self.store, prove(self.job()))
            job = replace(self._parts, store=store).job(store.settings())
            return contextlib.closing(make_engine(job, engine, **on))

        how: Any = {"labels": labels, "traces": traces, "progress": progress or Silence()}
        if target != "losses":
            return learn_ranking(self.store, open_engine, self.job, target, **how)
        return learn(self.store, open_engine, asked=(tolerance, promise, confidence), **how)

    def open_engine(
        self, name: EngineName | None = None, *, stores: Sequence[Store] = (), **options: Any
    ) -> contextlib.AbstractContextManager[Engine]:
        """Start workers that know the study's parts, as `collect` does; they end with the block."""
        return contextlib.closing(make_engine(self.job(stores), name, **options))

    def job(self, stores: Sequence[Store] = ()) -> Job:
        """Return what a worker needs, made of parts that are proven to be those of the study."""
        return self._parts.job(self.settings, stores)

    @property
    def diagnosis(self) -> dict[str, Any]:
        """The doctor's findings from before the study was made."""
        return dict(self.store.meta("diagnosis"))

    def status(self) -> Status:
        """Return what the study holds, what is left, and how long that may take."""
        version = self.store.version()
        if self._status is None or self._status[0] != version:
            self._status = version, study_status(self.store, self.settings)
        return self._status[1]

    # -- using ---------------------------------------------------------------------------------

    def tuples(
        self,
        proxy: str | None = None,
        *,
        estimand: Estimand = "mean",
        plan: Settings | None = None,
    ) -> Tuples:
        """Return the moments measured for every n, natural ones first, in collection order.

        With estimand "single-run" they carry the losses of single runs, too. With `plan`, estimates
        are recomputed as if other settings had stopped the trials.
        """
        check_estimand(estimand)
        name = self.default_proxy if proxy is None else proxy
        refuse_ranking(name)
        if name not in (known := self.proxies):
            raise InvalidInput(f"the study has no proxy {name!r}; {did_you_mean(name, known)}")
        return read_tuples(self.store, self.settings, name, estimand, plan)

    def fit(
        self,
        confidence: float = 0.95,
        *,
        method: str = DEFAULT_METHOD,
        promise: Promise = "bound",
        proxy: str | None = None,
        estimand: Estimand = "mean",
        **options: Any,
    ) -> Margins:
        """Fit safety margins to all measured moments; the options are those of `fit_margins`.

        The promise "margin" is for `tolerances` alone: of the margins granted, at most 1 − β fail.
        """
        return fit_study(
            self.store,
            self._enough(proxy, estimand),
            estimand,
            confidence,
            method_for(promise, method),
            **options,
        )

    def validate(
        self,
        confidence: float = 0.95,
        *,
        method: str = DEFAULT_METHOD,
        promise: Promise = "bound",
        proxy: str | None = None,
        estimand: Estimand = "mean",
        **options: Any,
    ) -> Validation:
        """Check whether held-out moments stay under the bound as often as promised.

        A learned proxy is learned anew without each fold.
        """
        return validate_study(
            self.store,
            self._enough(proxy, estimand),
            estimand=estimand,
            confidence=confidence,
            method=method_for(promise, method),
            **options,
        )

    def compare(
        self,
        confidence: float = 0.95,
        *,
        tolerances: Sequence[float] | None = None,
        proxies: Sequence[str] | None = None,
        estimand: Estimand = "mean",
        progress: Progress | None = None,
        **options: Any,
    ) -> Comparison:
        """Compare all methods with all proxies on moments that their fits have not seen."""
        every = [self._enough(name, estimand) for name in proxies or self.proxies]
        return compare_study(
            self.store,
            every,
            progress or Silence(),
            confidence=confidence,
            tolerances=tolerances,
            estimand=estimand,
            **options,
        )

    @property
    def minimum_bandwidth(self) -> float:
        """The lower limit of the paper's vertical bandwidth, ε̂_sampling / t_α; 0 without ε̂."""
        return minimum_bandwidth(self.settings)

    def plot(
        self,
        folder: str | Path,
        *,
        confidence: float = 0.95,
        method: str = DEFAULT_METHOD,
        proxy: str | None = None,
        estimand: Estimand = "mean",
        picture_format: str = "png",
    ) -> list[Path]:
        """Draw the densities, the margins and the proxies; return the paths of the pictures."""
        from safemargin.study.plots import save_figures  # matplotlib is slow to import

        margins = self.fit(confidence, method=method, proxy=proxy, estimand=estimand)
        return save_figures(self.tuples(proxy), margins, Path(folder), picture_format)

    # -- inside --------------------------------------------------------------------------------

    def _enough(self, proxy: str | None, estimand: Estimand = "mean") -> Tuples:
        refuse_labels(self.store)
        return not_empty(self.store, self.tuples(proxy, estimand=estimand))
