"""What hardware costs, and what that makes of a plan. All default prices are assumptions: round figures, with no source."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvloft.config import nearest
from kvloft.errors import ConfigError

HOURS_A_MONTH = 730.0
DAYS_A_MONTH = HOURS_A_MONTH / 24


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices, and how long a disk lasts. The defaults are assumptions.

    Args:
        currency: of all prices.
        gpu_hour: of one GPU; None for what `kvloft.sim.hardware` assumes.
        host_gib_month: of one GiB of host memory for a month. Bought memory: its price over the months that it serves.
        disk_tib_month: of one TiB of disk for a month, likewise.
        disk_writes_a_day: how often a day a disk may be written over from end to end, for as long as it is to serve (DWPD).
    """

    currency: str = "USD"
    gpu_hour: float | None = None
    host_gib_month: float = 0.15
    disk_tib_month: float = 4.0
    disk_writes_a_day: float = 1.0


class Cost(msgspec.Struct, frozen=True):
    """What a month of some size costs."""

    host: float
    disk: float
    disk_writes_a_day: float
    """How often a day the disk is written over."""
    wear: float
    """That, as a share of what the disk may take. Above 1 it dies early, and the cost counts those bought in its place."""

    @property
    def total(self) -> float:
        return self.host + self.disk


def cost(prices: Prices, host_bytes: int, disk_bytes: int, written_a_day: float) -> Cost:
    """A month of these sizes, if so many bytes are written to the disk a day."""
    writes = written_a_day / disk_bytes if disk_bytes else 0.0
    wear = writes / prices.disk_writes_a_day
    disk = prices.disk_tib_month * disk_bytes / 2**40 * max(1.0, wear)
    return Cost(prices.host_gib_month * host_bytes / 2**30, disk, writes, wear)


def read_prices(path: Path) -> Prices:
    """From a TOML or JSON file with fields as `Prices` has them; those left out have their defaults.

    Raises:
        ConfigError: it cannot be read, or fields are wrong; all of them at once.
    """
    try:
        text = path.read_text()
        given = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"prices: {path}: {error}; give a TOML or JSON file such as: host_gib_month = 0.15") from error
    if not isinstance(given, Mapping):
        raise ConfigError(f"prices: {path}: a table is needed, not {type(given).__name__}")
    problems = [problem for name, value in given.items() if (problem := _problem(name, value))]
    if problems:
        raise ConfigError([f"prices: {path}: {problem}" for problem in problems])
    return Prices(**given)


def _problem(name: str, value: Any) -> str | None:
    if name not in Prices.__struct_fields__:
        meant = nearest(name, Prices.__struct_fields__)
        hint = f"did you mean {meant}?" if meant else f"known are: {', '.join(Prices.__struct_fields__)}"
        return f"{name} is unknown; {hint}"
    if name == "currency":
        return None if isinstance(value, str) and value else f"currency is {value!r}, not text"
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
        return f"{name} is {value!r}, not a number of at least 0"
    return f"{name} is 0; a disk may be written at least a little" if name == "disk_writes_a_day" and not value else None
