"""Running what `safemargin watch` serves: a fleet of agents, or the replay of its log."""

from __future__ import annotations

import gc
import json
import math
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket
from typing import Any

from safemargin.cli.options import EnvironmentOptions
from safemargin.cli.watch import AgentOptions, CallOptions, PeopleOptions, ServerOptions
from safemargin.environments import EnvironmentSpec, environment_identity
from safemargin.errors import InvalidInput
from safemargin.margins.lookup import Margins
from safemargin.monitor.audit import AuditLog, printable
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.notifications import Command, Notifier, Webhook
from safemargin.policies import load_policy
from safemargin.study.signing import code_named
from safemargin.validation.heldout import typical_tolerances
from safemargin.web.access import Access, find_page_token, find_token
from safemargin.web.entrance import HOSTS
from safemargin.web.fleet.local import Crew, LocalAgents
from safemargin.web.fleet.messages import LONGEST_MESSAGE
from safemargin.web.fleet.state import Fleet
from safemargin.web.fleet_app import create_fleet_app
from safemargin.web.replay_app import create_replay_app
from safemargin.web.server import listen, serve

LOOPBACK = (*HOSTS, "::1")
NOTIFY_AT_MOST = 10.0
"""Seconds between two messages to people who do not look at the page."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Everything that `safemargin watch` was asked to do."""

    files: tuple[str, ...]
    """The policy and its margins file, the margins file alone, or nothing."""
    agents: AgentOptions
    made_with: EnvironmentOptions
    calls: CallOptions
    people: PeopleOptions
    server: ServerOptions
    as_json: bool

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the page."""
        return self.server.host in LOOPBACK

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names that the server answers to."""
        return LOOPBACK if self.loopback else ("*",)


def run_fleet(options: WatchOptions) -> None:
    """Serve the page of a fleet, with the agents that run here, until Ctrl-C."""
    _check(options)
    crew = margins = None
    if options.files:
        margins = Margins.load(options.files[-1])
        options = replace(options, calls=_with_tolerance(options.calls, margins))
        crew = _crew(options, margins)
    notifiers = _notifiers(options)
    try:
        # Whatever may be refused comes before the log is made.
        if options.server.token_file is not None:
            find_token(options.server.token_file, options.people.log)
        with (
            listen(options.server.host, options.server.port) as bound,
            AuditLog(options.people.log, write=True) as log,
        ):
            log.check()
            _serve_fleet(options, bound, log, crew, margins, notifiers)
    finally:
        for notifier in notifiers:
            notifier.close(timeout=5)
            if notifier.failed:
                count = f"{notifier.failed} of {notifier.failed + notifier.delivered}"
                _report_failure(notifier, f"failed for {count} messages; the last")


def _serve_fleet(
    options: WatchOptions,
    bound: socket,
    log: AuditLog,
    crew: Crew | None,
    margins: Margins | None,
    notifiers: list[Notifier],
) -> None:
    remote, path = options.server.remote, options.people.log
    page_token = None if options.loopback else find_page_token(path)
    access = Access(find_token(options.server.token_file, path), page_token)
    fleet = Fleet(
        log,
        make_monitor=None if margins is None else _monitors(options.calls, margins, agents=1),
        on_lost=options.people.on_lost,
        grace=options.people.grace,
        about=_about(options, crew, margins),
    )
    fleet.journal.listeners += notifiers
    hooks: dict[str, Any] = {}
    if crew is not None:
        local = LocalAgents(fleet, crew)
        hooks = {"start": local.start, "stop": local.stop}
    page = create_fleet_app(fleet, access, hosts=options.hosts, remote=remote, **hooks)
    token = access.token if remote else None
    _serve(options, bound, page, "the fleet", page_token=page_token, agents_token=token)


def _notifiers(options: WatchOptions) -> list[Notifier]:
    """Return what brings calls to people who do not look at the page."""
    people = options.people
    words = None if people.run is None else _command(people.run)
    notifiers: list[Notifier] = []
    if people.webhook is not None:
        notifiers.append(Webhook(people.webhook, at_most_every=NOTIFY_AT_MOST))
    if words is not None:
        notifiers.append(Command(words, at_most_every=NOTIFY_AT_MOST))
    for notifier in notifiers:
        notifier.on_failure = _report_first_failure
    return notifiers


def _command(text: str) -> list[str]:
    """Split the command of --run into words; InvalidInput if it cannot be run."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"--run cannot be read: {error}") from error
    if words and shutil.which(words[0]) is None:
        raise InvalidInput(f"--run: there is no command {words[0]!r} that can be run here")
    return words


def _report_first_failure(notifier: Notifier) -> None:
    if notifier.failed == 1:
        _report_failure(notifier, "failed")


def _report_failure(notifier: Notifier, what: str) -> None:
    text = f"the {type(notifier).__name__.lower()} {what}: {notifier.last_error}"
    print(f"safemargin: {printable(text)}", file=sys.stderr, flush=True)


def _check(options: WatchOptions) -> None:
    """Refuse options that contradict one another or lie out of range."""
    files, agents, remote = options.files, options.agents.agents, options.server.remote
    if not remote and len(files) != 2:
        raise InvalidInput(
            "watch needs a policy and its margins file, like `safemargin watch zoo:pong-a3c "
            "margins.json`; or --remote, for agents that run elsewhere"
        )
    if len(files) > (1 if remote and agents is None else 2):
        raise InvalidInput(
            "with --remote, watch takes a margins file only; --agents A runs a policy here as well"
        )
    if agents is not None and not 1 <= agents <= 500:
        raise InvalidInput(f"--agents must be 1 to 500, got {agents}")
    if agents is not None and len(files) != 2:
        raise InvalidInput("--agents needs a policy and its margins file to run them with")
    if options.made_with.env_arg and options.agents.env is None:
        raise InvalidInput("--env-arg gives arguments to the environment of --env; name that, too")
    speed, grace, wait = options.agents.speed, options.people.grace, options.calls.wait
    if not 0.01 <= speed <= 1000:
        raise InvalidInput(f"--speed must be 0.01 to 1000 decisions a second, got {speed}")
    if not grace >= 0 or not math.isfinite(grace):
        raise InvalidInput(f"--grace must be at least 0 s, got {grace}")
    if not 0 <= wait <= 3600:
        raise InvalidInput(f"--wait must be 0 to 3600 s, got {wait}")
    if options.agents.seed < 0:
        raise InvalidInput(f"--seed must be at least 0, got {options.agents.seed}")


def _with_tolerance(calls: CallOptions, margins: Margins) -> CallOptions:
    """Take a tolerance at which margins differ, unless one was given."""
    if calls.tolerance is not None:
        return calls
    typical = typical_tolerances(margins.bound.upper)
    return replace(calls, tolerance=typical[len(typical) // 2])


def _crew(options: WatchOptions, margins: Margins) -> Crew | None:
    """Return the agents to run here, if any, checked to belong to the margins."""
    monitor = _monitors(options.calls, margins, agents=1)()
    if len(options.files) == 1:
        return None
    policy = load_policy(
        options.made_with.policy(str(options.files[0])),
        kind=options.made_with.scores or margins.policy.get("kind"),
    )
    monitor.check(policy)
    spec = _environment(options, margins)
    env = spec.make()
    try:
        policy.check(env)
        monitor.check(None, environment_identity(spec, env))
        space = env.action_space
    finally:
        env.close()
    agents = options.agents.agents or 4
    return Crew(
        spec,
        policy,
        _monitors(options.calls, margins, agents=agents, action_space=space),
        agents,
        options.agents.speed,
        options.agents.seed,
        options.calls.wait,
    )


def _environment(options: WatchOptions, margins: Margins) -> EnvironmentSpec:
    """Return the environment of --env, or else that of the margins if it names no code."""
    if options.agents.env is not None:
        return EnvironmentSpec.parse(options.agents.env, options.made_with.arguments)
    known, file = margins.environment, options.files[-1]
    if not known.get("name"):
        raise InvalidInput(
            f"{file} does not say which environment it was made for; name it with --env"
        )
    spec = EnvironmentSpec.parse(known["name"], known.get("arguments"))
    if code := code_named(spec):
        raise InvalidInput(
            f"{file} names code as its environment, {code[0]}, and a margins file can never "
            "execute code; name it with --env (and its arguments with --env-arg) if you know what "
            "it does"
        )
    return spec


def _monitors(
    calls: CallOptions, margins: Margins, *, agents: int, action_space: Any = None
) -> Callable[[], Monitor]:
    """Return a maker of monitors: one for each agent, with one rate of false alarms together."""

    def make() -> Monitor:
        assert calls.tolerance is not None  # see `_with_tolerance`
        return Monitor(
            margins,
            tolerance=calls.tolerance,
            call_at=calls.call_at,
            release_at=calls.release_at,
            pause=calls.pause,
            action_space=action_space,
            false_alarms=0.01 / agents,
        )

    return make


def _about(options: WatchOptions, crew: Crew | None, margins: Margins | None) -> dict[str, Any]:
    """Return what the page says about the fleet, and the log about the server."""
    about: dict[str, Any] = {"remote": options.server.remote, "speed": options.agents.speed}
    if margins is not None:
        rule = _monitors(options.calls, margins, agents=1)().rule
        about |= {
            "tolerance": rule.tolerance,
            "call_at": rule.call_at,
            "release_at": rule.release_at,
            "confidence": margins.confidence,
            "proxy": margins.proxy,
            "n_values": list(margins.n_values),
            "environment": margins.environment.get("name"),
            "policy": margins.policy.get("description"),
        }
    if crew is not None:
        about |= {"agents": crew.agents, "seed": crew.seed, "environment": crew.environment.name}
    return about


def replay_log(options: WatchOptions, path: Path) -> None:
    """Serve a page that shows what a log holds, until Ctrl-C."""
    if options.files or options.server.remote or options.agents.agents is not None:
        raise InvalidInput("--replay shows a log and runs no agents; leave the rest out")
    with listen(options.server.host, options.server.port) as bound, AuditLog(path) as log:
        log.check()
        page_token = None if options.loopback else find_page_token(path)
        page = create_replay_app(log, Access("", page_token), hosts=options.hosts)
        _serve(options, bound, page, "the replay", page_token=page_token)


def _serve(
    options: WatchOptions,
    bound: socket,
    page: Any,
    what: str,
    *,
    page_token: str | None,
    agents_token: str | None = None,
) -> None:
    query = "" if page_token is None else f"?token={page_token}"

    def started(address: str) -> None:
        if options.as_json:
            token = {} if agents_token is None else {"token": agents_token}
            print(json.dumps({"address": address + query, **token}), flush=True)
            return
        print(f"{what} is at {address}{query}  (Ctrl-C ends it)", flush=True)
        if agents_token is not None:
            print(f"agents report to {address} with the token {agents_token}", flush=True)

    settings = {
        "ws_max_size": LONGEST_MESSAGE,
        "ws_ping_interval": 5.0,
        "ws_ping_timeout": 15.0,
        "ws_per_message_deflate": False,
    }
    gc.freeze()  # what is loaded stays: collecting garbage need not look at it, and takes a tenth
    try:
        serve(
            page,
            bound,
            browser=not options.server.no_browser,
            started=started,
            query=query,
            settings=settings,
        )
    except KeyboardInterrupt:
        print(file=sys.stderr)
