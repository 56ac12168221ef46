"""`--help` on a narrow terminal: within 80 columns, and nothing cut off."""

import pytest
from typer.main import get_command

from kvloft.cli import _app, main

_GROUP = get_command(_app)
COMMANDS = _GROUP.list_commands(_GROUP.make_context("kvloft", [], resilient_parsing=True))


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words) or "kvloft")
def test_help_is_whole_at_80_columns(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert not end.value.code
    shown = capsys.readouterr().out
    assert "--help" in shown and "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
