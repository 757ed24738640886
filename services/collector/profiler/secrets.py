"""Masks secrets in a command line, before it is stored or shown.

A secret that is masked too often does no harm; one that is missed does. Names are compared by their words, so that
``--tokenizer`` and ``--max-tokens`` stay readable.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
_SECRET_WORDS: Final = frozenset(
    {
        "password",
        "passwd",
        "passphrase",
        "passcode",
        "pwd",
        "pw",
        "secret",
        "secrets",
        "token",
        "credential",
        "credentials",
        "apikey",
        "accesskey",
        "secretkey",
        "privatekey",
        "authtoken",
        "bearer",
        "authorization",
        "cookie",
        "dsn",
        "sas",
        "pat",
    }
)
_SECRET_ENDINGS: Final = ("password", "passwd", "passphrase", "secret", "token", "apikey")
_KEY_KINDS: Final = frozenset({"api", "access", "secret", "private", "auth", "account", "encryption", "license", "ssh"})
"""What makes a word ``key`` a secret: ``--api-key``, but not ``--sort-key``."""
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_WORD: Final = re.compile(r"[^A-Za-z0-9]+")
_ASSIGNMENT: Final = re.compile(
    r"""(?P<name>[A-Za-z_][\w.-]*)(?P<sign>["']?\s*[=:]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s"'&;,]+)"""
)
_OPTION_IN_TEXT: Final = re.compile(
    r"""(?P<name>--[A-Za-z][\w.-]*)(?P<sign>\s+)(?P<value>"[^"]*"|'[^']*'|[^\s"'-][^\s"']*)"""
)
_URL_PASSWORD: Final = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)")
_URL_TOKEN: Final = re.compile(r"(?P<before>https?://)[^\s/:@]+(?=@)")
_HEADER: Final = re.compile(r"(?P<before>\b(?:Bearer|Basic)\s+)[A-Za-z0-9+/=._~-]{6,}", re.IGNORECASE)
_KNOWN_SHAPES: Final = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS access key ids
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"  # GitHub, GitLab
    r"|\bhf_[A-Za-z0-9]{16,}|\bsk-[\w-]{16,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}"  # Hugging Face, OpenAI, Google
    r"|\bxox[abposr]-[\w-]{10,}"  # Slack
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # JSON web tokens
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


def names_secret(name: str) -> bool:
    """Whether an option or variable of this name holds a secret: ``--api-key``, ``WANDB_API_KEY``, ``dbPassword``."""
    words = [word.lower() for part in _NOT_WORD.split(name) for word in _CAMEL.split(part) if word]
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words) or any(
        kind in _KEY_KINDS and key == "key" for kind, key in itertools.pairwise(words)
    )


def mask_text(text: str) -> str:
    """Mask assignments to secret names, passwords in URLs, and what has the shape of a well-known kind of token."""

    def assigned(match: re.Match[str]) -> str:
        return f"{match['name']}{match['sign']}{MASK}" if names_secret(match["name"]) else match[0]

    masked = _KNOWN_SHAPES.sub(MASK, text)
    masked = _URL_PASSWORD.sub(lambda match: f"{match['before']}{MASK}", masked)
    masked = _URL_TOKEN.sub(lambda match: f"{match['before']}{MASK}", masked)
    masked = _HEADER.sub(lambda match: f"{match['before']}{MASK}", masked)
    masked = _ASSIGNMENT.sub(assigned, masked)
    return _OPTION_IN_TEXT.sub(assigned, masked)


def mask_command(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line for storage: the same number of words, probable secrets as ``***``."""
    masked: list[str] = []
    value_is_secret = False
    for word in argv:
        if value_is_secret and not word.startswith("--"):
            masked.append(MASK)
            value_is_secret = False
            continue
        value_is_secret = word.startswith("-") and "=" not in word and " " not in word and names_secret(word)
        masked.append(_mask_word(word))
    return tuple(masked)


def _mask_word(word: str) -> str:
    """``name=value`` as one word: here the value may hold spaces and quotes, so that all of it is masked."""
    name, sign, value = word.partition("=")
    if sign and value and " " not in name and names_secret(name):
        return f"{name}={MASK}"
    return mask_text(word)
