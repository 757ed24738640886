"""The console's key and its cookie: what opens, for how long, and how often somebody may guess."""

from __future__ import annotations

import pytest

from services.console.access import COOKIE_AGE_S, WRONG_KEYS, WRONG_KEYS_WINDOW_S, Access, AccessResult

KEY = "a-key-of-enough-length"
NAME = "turnbuckle_console_8710"
NOW_S = 1_700_000_000.0


def cookie(access: Access, now_s: float = NOW_S) -> dict[str, str]:
    """Headers of a browser that had the key at that time."""
    return {"cookie": access.cookie(NAME, now_s, secure=False).partition(";")[0]}


def test_a_cookie_opens_for_a_week_and_after_a_restart_with_the_same_key() -> None:
    headers = cookie(Access(KEY))
    again = Access(KEY)
    assert again.check(headers, NAME, NOW_S + COOKIE_AGE_S - 1) is AccessResult.ALLOWED
    assert again.check(headers, NAME, NOW_S + COOKIE_AGE_S) is AccessResult.NO_KEY
    assert Access("another-key-of-length").check(headers, NAME, NOW_S) is AccessResult.NO_KEY


def test_who_changes_the_expiry_is_refused() -> None:
    value = cookie(Access(KEY))["cookie"]
    expires, mac = value.partition("=")[2].split(".")
    later = f"{NAME}={int(expires) + 1}.{mac}"
    assert Access(KEY).check({"cookie": later}, NAME, NOW_S) is AccessResult.NO_KEY


def test_a_cookie_of_another_console_on_this_host_is_none() -> None:
    assert Access(KEY).check(cookie(Access(KEY)), "turnbuckle_console_8711", NOW_S) is AccessResult.NO_KEY


@pytest.mark.parametrize("text", ["", ";;;", "=", "a=b=c", f"{NAME}", f"{NAME}=\u00b2.0", "\x00=\x01"])
def test_what_is_no_cookie_opens_nothing(text: str) -> None:
    assert Access(KEY).check({"cookie": text}, NAME, NOW_S) is AccessResult.NO_KEY


def test_over_tls_the_cookie_is_for_tls_only() -> None:
    assert Access(KEY).cookie(NAME, NOW_S, secure=True).endswith("; HttpOnly; SameSite=Strict; Secure")


def test_guesses_of_an_address_are_counted_over_a_minute() -> None:
    access = Access(KEY)
    for number in range(WRONG_KEYS):
        assert access.check_key("guess", "10.0.0.1", NOW_S + number) is AccessResult.WRONG_KEY
    assert access.check_key(KEY, "10.0.0.1", NOW_S + WRONG_KEYS) is AccessResult.TOO_MANY
    assert access.check_key(KEY, "10.0.0.2", NOW_S + WRONG_KEYS) is AccessResult.ALLOWED
    # The first guess is a minute old: one more is looked at.
    assert access.check_key(KEY, "10.0.0.1", NOW_S + WRONG_KEYS_WINDOW_S) is AccessResult.ALLOWED


def test_no_key_is_no_guess() -> None:
    access = Access(KEY)
    for _ in range(WRONG_KEYS + 1):
        assert access.check_key("", "10.0.0.1", NOW_S) is AccessResult.NO_KEY
    assert access.check_key(KEY, "10.0.0.1", NOW_S) is AccessResult.ALLOWED


def test_addresses_that_guess_are_forgotten_when_there_are_too_many() -> None:
    access = Access(KEY)
    for number in range(3_000):
        access.check_key("guess", f"10.0.{number // 256}.{number % 256}", NOW_S)
    assert len(access._wrong) <= 1_024
