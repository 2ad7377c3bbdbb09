"""PromQL in the few forms that the dashboards use. Every selector is limited to the runs that are chosen."""

from __future__ import annotations

RUN = 'run=~"$run"'
POLICY = 'policy=~"$policy"'


def of(metric: str, *matchers: str) -> str:
    """The metric's series of the chosen runs."""
    return f"{metric}{{{', '.join((RUN, *matchers))}}}"


def rate(metric: str, *matchers: str) -> str:
    return f"rate({of(metric, *matchers)}[$__rate_interval])"


def total(by: str, query: str) -> str:
    return f"sum by ({by}) ({query})"


def mean(by: str, query: str) -> str:
    return f"avg by ({by}) ({query})"


def largest(by: str, query: str) -> str:
    return f"max by ({by}) ({query})"


def quantile(share: float, by: str, metric: str, *matchers: str) -> str:
    """Of a histogram."""
    return f"histogram_quantile({share}, {total(f'{by}, le', rate(f'{metric}_bucket', *matchers))})"
