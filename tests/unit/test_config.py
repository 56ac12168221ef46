import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvloft.config import Share, format_size, nearest, parse_share_or_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (4 << 30, 4 << 30),
        (2e9, 2_000_000_000),
        ("4096", 4096),
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        (" 1.5 MiB ", 3 << 19),
        ("4GB", 4_000_000_000),
        ("4g", 4_000_000_000),
        ("4Gi", 4 << 30),
        ("2T", 2_000_000_000_000),
        ("0.1k", 100),
        ("7 B", 7),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "wrong", ["", "GiB", "4 XB", "-4", "4.4.4", "0", 0, -1, 1.5, True, None, [], "0.1", float("nan"), float("inf"), 2**63]
)
def test_what_is_no_size_is_named(wrong: object) -> None:
    with pytest.raises(ValueError) as caught:
        parse_size(wrong)
    assert repr(wrong) in str(caught.value)
    assert "4GiB" in str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (640, "640 B"), (1023, "1023 B"), (1 << 20, "1 MiB"), (3 << 29, "1.5 GiB")]
)
def test_sizes_are_written_as_people_read_them(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(("text", "of_1000"), [("80%", 800), (" 12.5 %", 125), ("100%", 1000), ("0.1%", 1)])
def test_shares(text: str, of_1000: int) -> None:
    share = parse_share_or_size(text)
    assert isinstance(share, Share)
    assert share.of(1000) == of_1000
    assert parse_share_or_size(str(share)) == share


def test_a_size_is_no_share() -> None:
    assert parse_share_or_size("4GiB") == 4 << 30


@pytest.mark.parametrize("wrong", ["0%", "101%", "%", "-5%", "5%%", "lots"])
def test_what_is_no_share_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match="%") as caught:
        parse_share_or_size(wrong)
    assert repr(wrong) in str(caught.value)


@given(st.integers(1, 1 << 50))
def test_what_is_written_can_be_read_and_is_near(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.006, abs=1)
    assert size * 0.989 - 1 < parse_size(format_size(size, down=True)) <= size


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cpu_byte_to_use", "cpu_bytes_to_use"),
        ("cpu-bytes-to-use", "cpu_bytes_to_use"),
        ("Eviction_Policy", "eviction_policy"),
        ("transfer_thread", "transfer_threads"),
        ("something_else", None),
    ],
)
def test_nearest(name: str, meant: str | None) -> None:
    assert nearest(name, ["cpu_bytes_to_use", "eviction_policy", "transfer_threads"]) == meant
