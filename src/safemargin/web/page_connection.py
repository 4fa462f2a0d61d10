"""Open pages: each gets every decision, a slow one later and in larger batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket

from safemargin.errors import InvalidInput, SafemarginError
from safemargin.web.connections import REFUSED, Connection
from safemargin.web.fleet import messages
from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.news import News
from safemargin.web.fleet.people import Person
from safemargin.web.fleet.state import Fleet

Asked = messages.Act | messages.Steering | messages.Snooze | messages.HandOver

PAGE_RATE = 60.0
"""Messages a second that a page may send."""
MOST_ROWS = 200_000
"""The most decisions that wait for a slow page; an even slower one gets the whole state."""
BUSY = 4
"""With this many messages on their way to a page, news is collected instead of sent."""
MOST_PICTURES = 64
"""The most pictures in one round; the others come with the next."""

STEERING = ("take", "act", "give", "dismiss")
ANSWERS = ("acknowledge", "snooze", "hand-over")
READERS: dict[str, Callable[[Mapping[str, Any]], Asked]] = {
    "act": messages.read_act,
    "snooze": messages.read_snooze,
    "hand-over": messages.read_hand_over,
}

OLDEST = 3.0
"""Seconds after its last beat from which on a page's requests are refused."""


class PageConnection(Connection):
    """An open page."""

    rate, flood = PAGE_RATE, "this page sends too many messages; load it again"
    deaf = REFUSED, "this page does not read its messages; load it again"

    def __init__(self, websocket: WebSocket, fleet: Fleet) -> None:
        super().__init__(websocket, fleet)
        self.person: Person = Person("", "")
        self.looks_at: int | None = None
        self.skipped = 0
        """How many decisions the page never got, because it read too slowly for too long."""
        self._news = News()
        self._next_picture = 0

    def update(self, news: News) -> None:
        """Send news to the page once it has read the news before."""
        waiting = self._news
        waiting.add(news)
        if len(waiting.rows) > MOST_ROWS:
            self.skipped += len(waiting.rows)
            self._news = News(pictured=waiting.pictured)
            self.send(self.fleet.snapshot())
            return
        if self.outgoing.qsize() >= BUSY:
            return
        shown = self._round_of(waiting.pictured)
        self._news = News(pictured=waiting.pictured - set(shown))
        agents = self.fleet.agents
        if waiting.changed:
            states = [agents[index].to_dict() for index in sorted(waiting.changed)]
            self.send({"kind": "agents", "now": self.fleet.clock(), "agents": states})
        if waiting.rows:
            self.send({"kind": "decisions", "rows": waiting.rows})
        if waiting.entries:
            self.send({"kind": "entries", "entries": waiting.entries})
        for index in shown:
            self.send(agents[index].picture_message())
        looked = self.looks_at
        if looked is not None and (
            looked in waiting.changed or any(row[0] == looked for row in waiting.rows)
        ):
            self.send({"kind": "seen", **agents[looked].seen()})

    def _round_of(self, pictured: set[int]) -> list[int]:
        """Return the next few agents to show, starting after the last round."""
        first = self._next_picture
        shown = sorted(pictured, key=lambda index: (index < first, index))[:MOST_PICTURES]
        if shown:
            self._next_picture = shown[-1] + 1
        return shown

    def beat(self) -> None:
        """Send a sign of life; the page returns its number with each request."""
        if self.outgoing.qsize() < BUSY:
            self.send({"kind": "beat", "beat": time.monotonic()})

    def gone(self) -> None:
        if self in self.fleet.pages:
            self.fleet.pages.discard(self)
            self.fleet.people.depart(self.person)
            self.fleet.pace_pictures()
            self._show_people()

    def receive(self, message: Message) -> None:
        try:
            text = message.get("text") or message.get("bytes") or ""
            self._receive_json(messages.read_json(text))
        except SafemarginError as error:
            self.complain(error)

    def _receive_json(self, message: dict[str, Any]) -> None:
        fleet, wanted = self.fleet, message.get("do")
        if self not in fleet.pages:
            if wanted != "hello":
                raise InvalidInput('the first message must be {"do": "hello", "secret": …}')
            self._begin(message)
        elif wanted == "look":
            self.looks_at = None if message.get("agent") is None else self._agent(message).index
            fleet.pace_pictures()
            if self.looks_at is not None:
                agent = fleet.agents[self.looks_at]
                self.send({"kind": "timeline", "index": agent.index, **agent.track.last()})
                self.send({"kind": "seen", **agent.seen()})
        elif wanted == "name":
            fleet.rename(self.person, messages.read_renaming(message).name)
            self.send({"kind": "you", "name": self.person.name})
            self._show_people()
        elif wanted in STEERING or wanted in ANSWERS:
            self._steer(wanted, message)
        else:
            raise InvalidInput(f"the message {wanted!r:.40} is unknown")

    def _begin(self, message: dict[str, Any]) -> None:
        greeting = messages.read_greeting(message)
        self.person = self.fleet.arrive(greeting.secret, greeting.name)
        self.send(self.fleet.snapshot())
        self.beat()
        self.send({"kind": "you", "name": self.person.name})
        self._news.pictured |= {each.index for each in self.fleet.agents if each.picture}
        self.fleet.pages.add(self)
        self.fleet.pace_pictures()
        self._show_people()

    def _show_people(self) -> None:
        """Tell all pages who is here."""
        names = self.fleet.people.present()
        for page in tuple(self.fleet.pages):
            page.send({"kind": "people", "names": names})

    def _steer(self, wanted: str, message: dict[str, Any]) -> None:
        agent, control, answers = self._agent(message), self.fleet.control, self.fleet.answers
        try:
            asked = READERS.get(wanted, messages.read_steering)(message)
            if asked.beat is not None:
                self._check_age(asked.beat)
            if isinstance(asked, messages.Act):
                control.act(self.person, agent, asked.episode, asked.step, asked.action)
            elif isinstance(asked, messages.Snooze):
                answers.snooze(self.person, agent, asked.seconds)
            elif isinstance(asked, messages.HandOver):
                answers.hand_over(self.person, agent, asked.to)
            elif wanted == "take":
                control.take(self.person, agent, force=asked.force)
            elif wanted == "give":
                control.hand_back(self.person, agent)
            elif wanted == "acknowledge":
                answers.acknowledge(self.person, agent)
            else:
                control.dismiss(self.person, agent)
        except InvalidInput as error:  # the page did nothing wrong: it is just not possible
            self.send({"kind": "note", "text": str(error), "undone": wanted})

    def _check_age(self, beat: float) -> None:
        """Raise InvalidInput for a request from before the server or the network stalled."""
        age = time.monotonic() - beat
        if not age <= OLDEST:
            self.beat()  # so that the next request is not too late
            raise InvalidInput(
                f"too late: the server had been out of reach for {age:.0f} s; not done"
            )

    def _agent(self, message: dict[str, Any]) -> Agent:
        index = message.get("agent")
        if type(index) is not int or not 0 <= index < len(self.fleet.agents):
            raise InvalidInput(f"there is no agent {index!r:.40}")
        return self.fleet.agents[index]
