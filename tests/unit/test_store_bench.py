"""`kvloft bench store`: one table, what was written is gone, and errors in words."""

import json
from typing import Any

import pytest

from kvloft.cli import main
from kvloft.cli._bench_store import add_break_even, read_settings
from kvloft.errors import ConfigError
from kvloft.testing.servers import RedisServer
from store_media import RawRedis, need, serving

pytestmark = pytest.mark.xdist_group("redis")


def test_a_store_is_measured_and_left_empty(capsys: pytest.CaptureFixture[str]) -> None:
    need(RedisServer)
    with serving(RedisServer("--requirepass", "hunter2-password")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PASSWORD", "hunter2-password")
        patch.setenv("COLUMNS", "140")
        command = ["bench", "store", server.url, "--set", "password=env:PASSWORD", "--sizes", "64KiB", "--depths", "1,4"]
        with pytest.raises(SystemExit) as ended:
            main([*command, "--amount", "1MiB", "--prefill", "1000", "--json"])
        assert ended.value.code == 0
        result = json.loads(capsys.readouterr().out)
        assert [(row["block_bytes"], row["depth"], row["not_ok"]) for row in result["rows"]] == [
            (65536, 1, 0),
            (65536, 4, 0),
        ]
        assert all(value > 0 for row in result["rows"] for name, value in row.items() if name.endswith("seconds"))
        raw = RawRedis(server.url.replace("//", "//:hunter2-password@"), "kvloft")
        assert raw.names() == []
        with pytest.raises(SystemExit):
            main([*command, "--amount", "256KiB"])
        table = capsys.readouterr().out
        assert "pays below" in table and "64 KiB" in table and "hunter2" not in table
        patch.setenv("PASSWORD", "wrong-password")
        with pytest.raises(SystemExit) as ended:
            main(command)
        told = capsys.readouterr().err
        assert ended.value.code == 2 and server.url in told and "wrong-password" not in told and "Traceback" not in told


def test_break_even_is_where_waiting_and_loading_take_as_long_as_computing() -> None:
    rows: list[dict[str, Any]] = [{"load": 1e9, "lookup_seconds": 0.01, "load_seconds": 0.04}]
    add_break_even(rows, 100_000, 5000)
    assert rows[0]["load_tokens_per_second"] == 10_000
    tokens = rows[0]["break_even_tokens"]
    assert tokens == pytest.approx(500) and tokens / 5000 == pytest.approx(0.05 + tokens / 10_000)
    add_break_even(rows, 100_000, 20_000)
    assert rows[0]["break_even_tokens"] is None


def test_settings_of_the_command_line() -> None:
    assert read_settings(["options.region=x", "options.endpoint=http://h:1", "allow_http=true", "ttl=5", "user=u=v"]) == {
        "options": {"region": "x", "endpoint": "http://h:1"},
        "allow_http": True,
        "ttl": 5,
        "user": "u=v",
    }
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        read_settings(["password"])
