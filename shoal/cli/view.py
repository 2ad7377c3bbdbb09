"""What the user sees while a run goes on: one live screen, or plain lines where there is no terminal.

Both take the same calls from the monitor, on the event loop, and draw only when called: they have no thread.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from shoal.cli import figures
from shoal.cli.child import Child, State
from shoal.cli.history import Event, Sample
from shoal.cli.say import say

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table

PLAIN_EVERY_S = 5.0
MAX_EVENTS_SHOWN = 6
# More processes of one role than this share one line of the screen.
MAX_ROWS_PER_ROLE = 4
STATE_COLOURS = {State.UP: "green", State.STARTING: "cyan", State.WAITING: "red"}


class View(Protocol):
    """Where the monitor shows a run."""

    def event(self, event: Event) -> None: ...

    def update(self, sample: Sample, children: Sequence[Child], rates: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class PlainView:
    """A line every few seconds, and one for each event."""

    def __init__(self, out: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._now = now
        self._last_line_at: float | None = None
        self._last_sample: Sample | None = None
        self._last_event_s = 0.0

    def event(self, event: Event) -> None:
        self._last_event_s = event.time_s
        say(f"{figures.clock(event.time_s):>7}  {event.text}", self._out)

    def update(self, sample: Sample, children: Sequence[Child], rates: dict[str, float]) -> None:
        now = self._now()
        is_due = self._last_line_at is None or now - self._last_line_at >= PLAIN_EVERY_S
        # The time of a log does not run backwards.
        is_new = sample is not self._last_sample and sample.time_s >= self._last_event_s
        if is_due and is_new:
            self._last_line_at, self._last_sample = now, sample
            say(plain_line(sample, children), self._out)

    def close(self) -> None:
        pass


def plain_line(sample: Sample, children: Sequence[Child]) -> str:
    """One line with all figures, for logs."""
    up = sum(child.state is State.UP for child in children)
    parts = [
        f"{figures.clock(sample.time_s):>7}",
        f"return {figures.returns(sample)}",
        *([f"loss {figures.losses(sample)}"] if sample.policies else []),
        f"steps {figures.env_steps(sample)}",
        f"collected {figures.per_second(sample.env_steps_per_s)}",
        f"trained {figures.trained(sample)}",
        f"learner waits {figures.percent(sample.learner_waiting)}",
        f"batch {figures.inference(sample)}",
        f"replay {figures.replay(sample)}",
        f"lag {figures.policy_lag(sample)}",
        f"restarts {sample.num_restarts}",
        f"up {up}/{len(children)}",
        *([f"guards {', '.join(sample.guards)}"] if sample.guards else []),
    ]
    return "  ".join(parts)


class LiveView:
    """One screen that redraws itself in place. A terminal that was closed does not end a run."""

    def __init__(self, title: str, target: float | None, console: Console | None = None) -> None:
        self._title = title
        self._target = target
        self._console = console
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS_SHOWN)
        self._live: Live | None = None
        self._is_gone = False

    def event(self, event: Event) -> None:
        self._events.append(event)

    def update(self, sample: Sample, children: Sequence[Child], rates: dict[str, float]) -> None:
        if self._is_gone:
            return
        try:
            self._started().update(self._render(sample, children, rates), refresh=True)
        except OSError:
            self._is_gone = True

    def close(self) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()

    def _started(self) -> Live:
        if self._live is None:
            # rich takes 100 ms to import: only now, when the services are on their way.
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="ellipsis")
            self._live.start()
        return self._live

    def _render(self, sample: Sample, children: Sequence[Child], rates: dict[str, float]) -> Group:
        from rich.console import Group
        from rich.text import Text

        head = Text.assemble((self._title, "bold"), f"   {figures.clock(sample.time_s)}")
        texts = [f"{figures.clock(event.time_s):>7}  {event.text}" for event in self._events]
        lines = [Text(text, style="yellow", no_wrap=True, overflow="ellipsis") for text in texts]
        # The processes come last: what does not fit on a small terminal is cut off at the bottom.
        middle: list[Table | Text] = [_policies(sample), Text()] if sample.policies else []
        if sample.guards:
            middle.append(Text(f"guards: {', '.join(sample.guards)}", style="bold red"))
        return Group(head, Text(), self._vitals(sample), Text(), *middle, *lines, _processes(children, rates))

    def _vitals(self, sample: Sample) -> Table:
        from rich.table import Table

        target = f" of {self._target:g}" if self._target is not None else ""
        left = [
            ("return", f"[bold]{figures.episode_return(sample)}[/]{target}{figures.untrained(sample)}"),
            ("env steps", figures.env_steps(sample)),
            ("collected", figures.per_second(sample.env_steps_per_s)),
            ("trained", figures.trained_at_once(sample)),
        ]
        right = [
            ("learner waiting", figures.percent(sample.learner_waiting)),
            ("inference batch", figures.inference(sample)),
            ("replay fill", figures.replay(sample)),
            ("policy lag", f"{figures.policy_lag(sample)} versions"),
        ]
        if sample.evaluation_return is not None:
            left.append(("evaluation", f"{sample.evaluation_return:,.1f}"))
            right.append(("", ""))
        table = Table.grid(padding=(0, 2))
        for style in ("dim", "", "dim", ""):
            table.add_column(style=style, min_width=14)
        for (name, value), (other_name, other) in zip(left, right, strict=True):
            table.add_row(name, value, other_name, other)
        return table


def _policies(sample: Sample) -> Table:
    """A line for each, of several."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("policy", "return", "untrained", "evaluation", "loss", "env steps"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name in sample.policies:
        keys = ("episode_return", "untrained_return", "evaluation_return", "loss", "env_steps")
        table.add_row(name, *(figures.of_policy(sample, name, key) for key in keys))
    return table


def _processes(children: Sequence[Child], rates: dict[str, float]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("process", "state", "uptime", "restarts", "work"):
        table.add_column(column)
    for group in _rows(children):
        first = group[0]
        colour = STATE_COLOURS.get(first.state, "dim") if len({c.state for c in group}) == 1 else "yellow"
        name = first.name if len(group) == 1 else f"{first.spec.role} x {len(group)}"
        lived_s = time.monotonic() - max(child.started_at for child in group)
        restarts = sum(child.num_restarts for child in group)
        total = sum(rates.get(child.name, 0.0) for child in group)
        work = figures.work(first, {first.name: total} if any(c.name in rates for c in group) else {})
        state = Text(figures.states(group), style=colour)
        count = Text(str(restarts), style="red" if restarts else "")
        table.add_row(name, state, figures.clock(lived_s), count, work)
    return table


def _rows(children: Sequence[Child]) -> list[list[Child]]:
    """Processes that share a line of the screen."""
    by_role: dict[str, list[Child]] = {}
    for child in children:
        by_role.setdefault(child.spec.role, []).append(child)
    rows: list[list[Child]] = []
    for group in by_role.values():
        rows += [group] if len(group) > MAX_ROWS_PER_ROLE else [[child] for child in group]
    return rows
