"""The live parts of a study: environment, policy and proxies, proven to be those it was made with.

Parts that the user names are taken as they are. Parts that only the study names are made from its
database, and code among them runs only if the study is trusted (`signing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safemargin.core.settings import Settings
from safemargin.criticality.estimation import Randomness
from safemargin.criticality.perturbations import Perturbation, make_perturbation
from safemargin.criticality.reference import Reference, make_reference
from safemargin.engines import Job
from safemargin.environments import EnvironmentSpec
from safemargin.environments.functional.naming import suited_to
from safemargin.errors import InvalidInput, UntrustedCode
from safemargin.policies import load_policy
from safemargin.policies.base import Policy
from safemargin.policies.proxies import Proxy, proxies_for
from safemargin.study.provenance import (
    describe_environment,
    first_signal,
    refuse_mixing,
    refuse_other_perturbation,
    refuse_other_reference,
)
from safemargin.study.signing import code_named, is_signed, reference_code
from safemargin.study.store import Store


@dataclass(slots=True)
class Parts:
    """The parts of a study that the user supplied; the rest is made from the study when needed."""

    store: Store
    environment: EnvironmentSpec | None = None
    policy: Policy | None = None
    extra_proxies: Sequence[Proxy | str] | None = None
    trust: bool = False
    """Whether code that the study names may run although it is not signed by this user."""
    proven: bool = False
    """Whether environment and policy are known to be those the study was made with."""

    def environment_spec(self) -> EnvironmentSpec:
        """Return how to make the environment; InvalidInput if the study cannot know."""
        if self.environment is None:
            stored = self._stored_environment()
            if stored is None:
                raise InvalidInput(
                    f"the study in {self.store.folder} was made with a Python function as "
                    "environment; give it again: Study.open(path, env=make_env)"
                )
            self.require_trust(policy=False)
            self.environment = stored
        return self.environment

    def require_trust(self, *, policy: bool = True) -> None:
        """Raise UntrustedCode if the study names code to run that this user has not signed.

        Without `policy`, only the code that makes the environment counts.
        """
        code = code_named(self._stored_environment() if self.environment is None else None)
        if policy and self.policy is None:
            code += code_named(policy=self.store.meta("policy")["source"])
        if policy and self.extra_proxies is None:
            code += code_named(proxies=self.store.meta("extra_proxies"))
        if policy:
            code += code_named(policy=reference_code(self.store.meta("settings")))
        for perturb, _ in self.store.measured_pairs() if policy else ():
            code += [one for one in code_named(perturb=perturb) if one not in code]
        if code and not self.trust and not is_signed(self.store):
            raise UntrustedCode(
                f"the study in {self.store.folder} would run {', '.join(code)}, and is not signed "
                "by you on this machine; if you know where it comes from, add --trust (in Python: "
                "Study.open(folder, trust=True))"
            )

    def job(self, settings: Settings, others: Sequence[Store] = ()) -> Job:
        """Return what a worker needs, made of parts that are proven to be those of the study.

        `others` are the study's databases about more mistakes and losses to measure.
        """
        self.require_trust()
        environment = self.environment_spec()
        policy = suited_to(environment, self._loaded_policy())
        if not self.proven:
            found = {
                "environment": describe_environment(environment, policy),
                "policy": {"identity": policy.identity},
            }
            refuse_mixing(self.store, found)
            self.proven = True
        extra, recorded = self.extra_proxies, self.store.meta("proxies")
        diagnosis = self.store.meta("diagnosis")
        return Job(
            environment=environment,
            policy=policy,
            settings=settings,
            proxies=proxies_for(
                policy.kind,
                self.store.meta("extra_proxies") if extra is None else extra,
                [proxy for proxy in policy.own_proxies() if proxy.name in recorded],
            ),
            way=diagnosis["way"],
            randomness=Randomness(
                environment=not diagnosis["environment_deterministic"],
                policy=not diagnosis["policy_deterministic"],
            ),
            identity=self.store.meta("environment")["identity"],
            perturbation=_perturbation(self.store, settings.perturb),
            reference=_reference(self.store, settings.reference),
            more={
                (about.perturb, about.signal): _perturbation(store, about.perturb)
                for store in others
                for about in [store.settings()]
            },
            first_signal=first_signal(self.store),
        )

    def _loaded_policy(self) -> Policy:
        if self.policy is None:
            described = self.store.meta("policy")
            if described["source"] is None:
                raise InvalidInput(
                    f"the study in {self.store.folder} was made with a Python object as policy; "
                    "give it again: Study.open(path, policy=policy)"
                )
            self.policy = load_policy(described["source"], kind=described["kind"])
        return self.policy

    def _stored_environment(self) -> EnvironmentSpec | None:
        text = self.store.meta("environment")["spec"]
        return None if text is None else EnvironmentSpec.from_json(text)


def _perturbation(store: Store, text: str) -> Perturbation:
    """Load a perturbation of a study; StudyMismatch if its file has changed."""
    found = make_perturbation(text)
    refuse_other_perturbation(store, found.identity)
    return found


def _reference(store: Store, text: str | None) -> Reference | None:
    """Load the reference of a study; StudyMismatch if its file has changed."""
    found = None if text is None else make_reference(text)
    refuse_other_reference(store, None if found is None else found.identity)
    return found
