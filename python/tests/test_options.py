import pytest

from penstock import PenstockError, _options


@pytest.mark.parametrize(
    "text, bytes_",
    [
        (1, 1),
        ("4096", 4096),
        ("24GiB", 24 << 30),
        ("24 GiB", 24 << 30),
        ("24g", 24 << 30),
        ("1.5GiB", 3 << 29),
        ("2MB", 2_000_000),
        ("7KiB", 7 << 10),
        ("1T", 1 << 40),
        ("9007199254740993", 9007199254740993),  # does not fit a float
    ],
)
def test_parse_bytes(text, bytes_):
    assert _options.parse_bytes(text) == bytes_


@pytest.mark.parametrize("text", ["", "GiB", "-1", "12 parsecs", "0", 0, -5, True, 1.5, None, "1e9", "0x10", "12GiBs"])
def test_parse_bytes_refuses(text):
    with pytest.raises(PenstockError) as e:
        _options.parse_bytes(text, "budget")
    assert "budget" in str(e.value) and "\n" not in str(e.value)


def test_to_environment(tmp_path):
    env = _options.to_environment(
        {"budget": "1GiB", "host_budget": None, "policy": "lru", "trace": tmp_path / "t", "verify": True, "quiet": False, "degree": 3}
    )
    assert env == {
        "PENSTOCK_BUDGET": str(1 << 30),
        "PENSTOCK_POLICY": "lru",
        "PENSTOCK_TRACE": str(tmp_path / "t"),
        "PENSTOCK_VERIFY": "1",
        "PENSTOCK_QUIET": "0",
        "PENSTOCK_DEGREE": "3",
    }
