"""Progress bars, on standard error, with rate and time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s", style="progress.data.speed")


@contextmanager
def progress(unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar, to be told how much is done, of how much. Shows nothing where standard error is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(unit, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
