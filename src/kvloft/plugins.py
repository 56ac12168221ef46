"""Plug-ins: policies and tiers that other installed distributions offer as entry points."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from kvloft.errors import ConfigError

POLICIES = "kvloft.policies"
TIERS = "kvloft.tiers"


class Plugin(NamedTuple):
    """What a plug-in offers under a name, and where that comes from, in words."""

    offer: Any
    source: str


def plugin_names(group: str) -> list[str]:
    """Names that are on offer in a group, sorted. Nothing is loaded."""
    return sorted({point.name for point in entry_points(group=group)})


def load_plugin(group: str, name: str) -> Plugin | None:
    """What is offered under a name; None if nothing is.

    Raises:
        ConfigError: it cannot be loaded, or several distributions offer it. The text names them.
    """
    # A distribution that is found twice, through two entries of sys.path, is one.
    points = {_source(point): point for point in entry_points(group=group, name=name)}
    if not points:
        return None
    if len(points) > 1:
        raise ConfigError(f"{name!r} is offered by {' and by '.join(sorted(points))}; uninstall all but one")
    [(source, point)] = points.items()
    try:
        return Plugin(point.load(), source)
    except (Exception, SystemExit) as error:  # whatever somebody else's module raises
        raise ConfigError(
            f"{name!r} cannot be loaded from {source}: {type(error).__name__}: {error}; mend or uninstall that distribution"
        ) from error


def _source(point: EntryPoint) -> str:
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed distribution"
    return f"{distribution} ({point.value})"
