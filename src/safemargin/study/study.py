"""A study: one environment, one policy and one settings, from the first episode to margins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import PHASES, Tuples
from safemargin.core.settings import Settings
from safemargin.core.version import __version__, versions_in_use
from safemargin.criticality.estimation import Randomness
from safemargin.criticality.stopping import student_quantile
from safemargin.engines import Engine, EngineName, Job, check_engine, make_engine
from safemargin.engines import available_cores as available_cores
from safemargin.environments import EnvironmentSpec
from safemargin.environments.doctor import examine
from safemargin.errors import (
    InvalidInput,
    NotMeasurable,
    StudyExists,
    StudyIncomplete,
    UntrustedCode,
    did_you_mean,
)
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.bounds.table import Estimand, check_estimand
from safemargin.margins.fitting import margins_from_sample
from safemargin.margins.lookup import Margins
from safemargin.margins.methods import DEFAULT_METHOD
from safemargin.policies import load_policy
from safemargin.policies.base import Policy, ScoreKind
from safemargin.policies.proxies import Proxy, default_proxy, proxies_for
from safemargin.study import collection
from safemargin.study.provenance import (
    describe_environment,
    describe_policy,
    refuse_mixing,
    source_text,
)
from safemargin.study.signing import SIGNATURE, code_named, is_signed, sign_again, signature
from safemargin.study.status import Status, study_status
from safemargin.study.store import DATABASE, Store
from safemargin.study.tuples import read_natural_proxies, read_tuples
from safemargin.validation.comparison import Comparison, compare_tuples
from safemargin.validation.validating import Validation, validate_tuples

MakeEnvironment = Callable[[], gym.Env[Any, Any]]


class Study:
    """One environment + one policy + one settings, on disk."""

    def __init__(
        self,
        store: Store,
        *,
        environment: EnvironmentSpec | None = None,
        policy: Policy | None = None,
        extra_proxies: Sequence[Proxy | str] | None = None,
        trust: bool = False,
    ) -> None:
        self._store = store
        self._environment = environment
        self._policy = policy
        self._extra_proxies = extra_proxies
        self._trust = trust
        self._named: Mapping[str, Any] | None = None
        self.settings = Settings.from_mapping(store.meta("settings"))

    # -- beginning and going on ----------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | Path,
        env: str | MakeEnvironment,
        policy: Any,
        settings: Settings | Mapping[str, Any] | None = None,
        *,
        env_arguments: Mapping[str, Any] | None = None,
        scores: ScoreKind | None = None,
        proxies: Sequence[Proxy | str] = (),
        progress: Progress | None = None,
    ) -> Study:
        """A new study, or the one in `path` if it was made with the very same parts.

        `env` is what `EnvironmentSpec.parse` takes, `policy` what `load_policy` takes; `proxies`
        are further proxies to record beside the built-in ones that apply. The doctor examines the
        environment first: what cannot be measured raises NotMeasurable and leaves no study.
        """
        folder = Path(path)
        if not isinstance(settings, Settings):
            settings = Settings.from_mapping(settings or {})
        spec = EnvironmentSpec.parse(env, dict(env_arguments) if env_arguments else None)
        loaded = load_policy(policy, kind=scores)
        recorded = proxies_for(loaded.kind, proxies)
        selection_proxy = settings.selection_proxy or _first_proxy(loaded.kind, recorded)
        names = [proxy.name for proxy in recorded]
        if selection_proxy not in names:
            raise InvalidInput(
                f"proxy {selection_proxy!r} does not apply to scores of kind {loaded.kind!r}; "
                + did_you_mean(selection_proxy, names)
            )
        exists = (folder / DATABASE).exists()
        diagnosis = None if exists else _diagnose(spec, loaded, settings, progress)
        meta = {
            "environment": describe_environment(spec, loaded),
            "policy": describe_policy(loaded, policy),
            "settings": asdict(settings),
            "proxies": names,
            "extra_proxies": [source_text(extra) for extra in proxies if isinstance(extra, str)],
            "selection_proxy": selection_proxy,
            "versions": versions_in_use(),
            "diagnosis": diagnosis,
        }
        try:
            store = Store.create(folder, {**meta, SIGNATURE: signature(meta)})
        except StudyExists:  # perhaps only since a moment ago, by another process
            store = Store.open(folder)
            refuse_mixing(store, meta)
        study = cls(store, environment=spec, policy=loaded, extra_proxies=proxies)
        study._named = meta
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
    ) -> Study:
        """The study in a folder.

        `env` and `policy` are needed only to collect more into a study that was made from Python
        objects, or whose policy file has moved. `trust` lets a study that somebody else made, or
        changed, run the code that it names.
        """
        study = cls(Store.open(Path(path)), extra_proxies=proxies or None, trust=trust)
        if env is not None:
            study._environment = EnvironmentSpec.parse(env)
        if policy is not None:
            study._policy = load_policy(policy, kind=study.policy["kind"])
        return study

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
        self._store.close()

    # -- what it is ----------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self._store.folder

    @property
    def store(self) -> Store:
        """The database, for those who read it: report, explorer, highlights."""
        return self._store

    @property
    def environment_spec(self) -> EnvironmentSpec:
        """How to make the environment again; InvalidInput where only its maker knows."""
        if self._environment is None:
            stored = self._stored_environment()
            if stored is None:
                raise InvalidInput(
                    f"the study in {self.path} was made with a Python function as environment; "
                    "give it again: Study.open(path, env=make_env)"
                )
            self.require_trust(policy=False)
            self._environment = stored
        return self._environment

    def require_trust(self, *, policy: bool = True) -> None:
        """UntrustedCode where the study names code to run that is not signed by this user.

        Without `policy`, only what makes the environment counts.
        """
        code = code_named(self._stored_environment() if self._environment is None else None)
        if policy and self._policy is None:
            code += code_named(policy=self._store.meta("policy")["source"])
        if policy and self._extra_proxies is None:
            code += code_named(proxies=self._store.meta("extra_proxies"))
        if code and not self._trust and not is_signed(self._store):
            raise UntrustedCode(
                f"the study in {self.path} would run {', '.join(code)}, and is not signed by you "
                "on this machine; if you know where it comes from, add --trust (in Python: "
                "Study.open(folder, trust=True))"
            )

    @property
    def environment(self) -> dict[str, Any]:
        """Name, specification and identity of the environment."""
        return dict(self._store.meta("environment"))

    @property
    def policy(self) -> dict[str, Any]:
        """Description, kind of scores and identity of the policy."""
        return dict(self._store.meta("policy"))

    @property
    def proxies(self) -> list[str]:
        """The proxies recorded at every step."""
        return list(self._store.meta("proxies"))

    @property
    def default_proxy(self) -> str:
        """The proxy a fit uses unless told otherwise: the one that spread the moments."""
        return str(self._store.meta("selection_proxy"))

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
        progress: Progress | None = None,
    ) -> Status:
        """Algorithm 2 until the study holds so many moments of each phase, fully measured.

        What is there already is kept; interrupt it at any time and call it again to go on.
        `workers`: how many, None for one on each core. `engine`: where they run, "local",
        "processes" or "ray"; the cluster's `address`, and `gpus_per_worker`, are Ray's. None of
        these changes the result.
        """
        check_collect(natural, spread, workers)
        place: dict[str, Any] = {
            "workers": workers,
            "address": address,
            "gpus_per_worker": gpus_per_worker,
        }
        check_engine(engine, **place)
        with self._store.writing(), self.open_engine(engine, **place) as chosen:
            if self._named is not None:
                sign_again(self._store, self._named)
            self._store.set_meta(
                "target", {"natural": natural, "spread": spread, "workers": chosen.workers}
            )
            collection.collect(
                self._store,
                chosen,
                self.settings,
                self.default_proxy,
                natural=natural,
                spread=spread,
                progress=progress or Silence(),
            )
        return self.status()

    @contextlib.contextmanager
    def open_engine(self, name: EngineName | None = None, **place: Any) -> Iterator[Engine]:
        """Workers that know the study's parts, as `collect` has them; they end with the block."""
        engine = make_engine(self.job(), name, **place)
        try:
            yield engine
        finally:
            engine.close()

    def job(self) -> Job:
        """What a worker needs to know; the parts are proven to be those of the study."""
        environment, policy = self._live_parts()
        diagnosis, extra = self.diagnosis, self._extra_proxies
        if extra is None:
            extra = self._store.meta("extra_proxies")
        return Job(
            environment=environment,
            policy=policy,
            settings=self.settings,
            proxies=proxies_for(policy.kind, extra),
            way=diagnosis["way"],
            randomness=Randomness(
                environment=not diagnosis["environment_deterministic"],
                policy=not diagnosis["policy_deterministic"],
            ),
        )

    @property
    def diagnosis(self) -> dict[str, Any]:
        """What the doctor found before the study was made."""
        return dict(self._store.meta("diagnosis"))

    def status(self) -> Status:
        """What is in the study, what is left, and how long that may take."""
        return study_status(self._store, self.settings)

    # -- using ---------------------------------------------------------------------------------

    def tuples(
        self,
        proxy: str | None = None,
        *,
        estimand: Estimand = "mean",
        plan: Settings | None = None,
    ) -> Tuples:
        """The moments that are measured for every n, natural ones first, in collection order.

        With estimand "single-run" they carry the losses of single runs, too. `plan` reads the
        study as if its trials had been stopped by other settings.
        """
        check_estimand(estimand)
        name = self.default_proxy if proxy is None else proxy
        if name not in self.proxies:
            raise InvalidInput(
                f"the study has no proxy {name!r}; {did_you_mean(name, self.proxies)}"
            )
        return read_tuples(self._store, self.settings, name, estimand, plan)

    def fit(
        self,
        confidence: float = 0.95,
        *,
        method: str = DEFAULT_METHOD,
        proxy: str | None = None,
        estimand: Estimand = "mean",
        **options: Any,
    ) -> Margins:
        """Safety margins from all measured moments; the options are those of `fit_margins`."""
        tuples = self._enough(proxy, estimand)
        about: dict[str, Any] = {
            "proxy": tuples.proxy,
            "environment": {
                name: self.environment[name] for name in ("name", "identity", "arguments")
            },
            "policy": {name: self.policy[name] for name in ("description", "identity", "kind")},
            "settings": self._store.meta("settings"),
            "counts": {
                **{phase: int((tuples.phases == phase).sum()) for phase in PHASES},
                "trials": int(tuples.trials.sum()),
            },
            "created_by": f"safemargin fit, safemargin {__version__}",
        }
        return margins_from_sample(
            Sample.from_tuples(tuples, estimand),
            confidence,
            method,
            natural_proxies=read_natural_proxies(self._store, self.settings, tuples.proxy),
            about=about,
            minimum_bandwidth=self.minimum_bandwidth,
            **options,
        )

    def validate(
        self,
        confidence: float = 0.95,
        *,
        method: str = DEFAULT_METHOD,
        proxy: str | None = None,
        estimand: Estimand = "mean",
        **options: Any,
    ) -> Validation:
        """Whether held-out moments stay under the bound as often as promised."""
        tuples = self._enough(proxy, estimand)
        return validate_tuples(
            tuples,
            estimand=estimand,
            confidence=confidence,
            method=method,
            minimum_bandwidth=self.minimum_bandwidth,
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
        """All methods with all proxies, judged on moments that their fits have not seen."""
        progress = progress or Silence()
        every = [self._enough(name, estimand) for name in proxies or self.proxies]

        def step(done: int, total: int) -> None:
            if done == 1:
                progress.stage("compare", total=total, done=0)
            progress.advance(0)

        return compare_tuples(
            every,
            confidence=confidence,
            tolerances=tolerances,
            estimand=estimand,
            minimum_bandwidth=self.minimum_bandwidth,
            progress=step,
            **options,
        )

    @property
    def minimum_bandwidth(self) -> float:
        """ε̂_sampling / t_α: what the paper's vertical bandwidth must not fall below.

        With a fixed number of trials there is no ε̂ to go by, and so no such limit.
        """
        if self.settings.trial_plan == "fixed":
            return 0.0
        quantile = student_quantile(self.settings.sampling_confidence, 10**9)
        return self.settings.sampling_error / quantile

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
        """Draw the densities, the margins and the proxies; returns the pictures' paths."""
        from safemargin.study import plots  # matplotlib is slow to import

        margins = self.fit(confidence, method=method, proxy=proxy, estimand=estimand)
        tuples = self.tuples(proxy)
        densities = plots.kde_info(
            tuples, confidence=confidence, minimum_bandwidth=self.minimum_bandwidth
        )
        left_out = 0.05 if method == "paper" else 0.0  # only the paper's method leaves any out
        histogram = plots.histogram_info(tuples, drop_highest=left_out)
        figures = {
            "densities": plots.kde_figure(densities),
            "proxies": plots.histogram_figure(histogram),
        }
        if not margins.bound.looks_at_n:  # else there is no single proxy axis
            figures["margins"] = plots.heatmap_figure(plots.heatmap_info(margins))
        return [
            plots.save_figure(figure, Path(folder) / f"{name}.{picture_format}")
            for name, figure in figures.items()
        ]

    def export(self, path: str | Path, *, steps: bool = False, episodes: int | None = None) -> Path:
        """Write the tuples (every moment, n and proxy) as .csv or .parquet.

        With `steps`: reward and proxies at every step of the (first so many) natural episodes;
        where a game has lives, each is an episode.
        """
        from safemargin.study.export import export_steps, export_tuples

        if steps:
            return export_steps(self._store, Path(path), episodes=episodes)
        return export_tuples(self._store, Path(path))

    # -- inside --------------------------------------------------------------------------------

    def _enough(self, proxy: str | None, estimand: Estimand = "mean") -> Tuples:
        tuples = self.tuples(proxy, estimand=estimand)
        if len(tuples) == 0:
            raise StudyIncomplete(
                f"the study in {self.path} holds no finished moment yet; "
                "run `safemargin collect` on it first"
            )
        return tuples

    def _stored_environment(self) -> EnvironmentSpec | None:
        text = self._store.meta("environment")["spec"]
        return None if text is None else EnvironmentSpec.from_json(text)

    def _live_parts(self) -> tuple[EnvironmentSpec, Policy]:
        """The environment and the policy, proven to be those the study was made with."""
        self.require_trust()
        environment, policy = self.environment_spec, self._policy
        if policy is None:
            described = self._store.meta("policy")
            if described["source"] is None:
                raise InvalidInput(
                    f"the study in {self.path} was made with a Python object as policy; "
                    "give it again: Study.open(path, policy=policy)"
                )
            policy = self._policy = load_policy(described["source"], kind=described["kind"])
        found = {
            "environment": describe_environment(environment, policy),
            "policy": {"identity": policy.identity},
        }
        refuse_mixing(self._store, found)
        return environment, policy


def check_collect(natural: int, spread: int, workers: int | None) -> None:
    """Refuse numbers that no collection can have."""
    if natural < 0 or spread < 0 or natural + spread == 0:
        raise InvalidInput(
            f"natural and spread must be at least 0 and not both 0, got {natural} and {spread}"
        )
    if workers is not None and workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")


def _first_proxy(kind: ScoreKind, recorded: Sequence[Proxy]) -> str:
    """The paper's proxy for these scores, or the user's own where there is none."""
    if not recorded:
        raise InvalidInput(
            f"no built-in proxy applies to scores of kind {kind!r}; give your own with proxies="
        )
    return recorded[0].name if kind == "actions" else default_proxy(kind)


def _diagnose(
    spec: EnvironmentSpec,
    policy: Policy,
    settings: Settings,
    progress: Progress | None,
) -> dict[str, Any]:
    """What the doctor finds; NotMeasurable where that is nothing good."""
    progress = progress or Silence()
    progress.stage("doctor", total=1, done=0)
    diagnosis = examine(spec.make, policy, settings)
    if not diagnosis.measurable:
        raise NotMeasurable(diagnosis.verdict)
    progress.advance(0)
    return diagnosis.to_dict()
