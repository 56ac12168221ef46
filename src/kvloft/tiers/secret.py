"""Secrets by reference: a setting says where a secret lies, never what it is."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from kvloft.errors import ConfigError

_URL_PASSWORD = re.compile(r"(?:(?<=://)|(?<![^\s'\"]))[^/@\s]*:[^/@\s]*@")
_PASSWORD_INSIDE = re.compile(r"(?:^|://)(?![a-z0-9+.-]+://)[^@]*:[^@]*@", re.IGNORECASE)
"""Whatever a URL is mistaken for where its scheme is left out or its password holds a slash."""
_URL_QUERY = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]+")
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret lies: "env:NAME" or "file:/path". Safe to print; only `read` shows the secret itself.

    Args:
        reference: the text above.
        setting: the setting it was given for, for errors.

    Raises:
        ConfigError: it is neither. The text does not repeat what was given, for it may be the secret itself.
    """

    reference: str
    setting: str = "secret"

    def __post_init__(self) -> None:
        kind, _, where = self.reference.partition(":")
        if kind not in ("env", "file") or not where:
            given = f"{len(self.reference)} characters"
            object.__setattr__(self, "reference", "?")
            raise ConfigError(
                f'{self.setting}: the {given} given are no reference; write "env:NAME" or "file:/path", not the secret'
            )

    def read(self) -> bytes:
        """The secret: the variable's value, or the file's content without a newline at its end.

        Raises:
            ConfigError: there is no such variable or file, or it is empty.
        """
        kind, _, where = self.reference.partition(":")
        if kind == "env":
            secret = os.environb.get(os.fsencode(where), b"")
            missing = f"the environment variable {where} is not set, or empty"
        else:
            try:
                secret, missing = Path(where).read_bytes().removesuffix(b"\n"), f"the file {where} is empty"
            except OSError as error:
                secret, missing = b"", f"the file {where} cannot be read: {error.strerror}"
            except ValueError as error:
                secret, missing = b"", f"no file can have this name: {error}"
        if not secret:
            raise ConfigError(f"{self.setting}: {missing}")
        return secret


def refuse_password(url: str, setting: str) -> None:
    """Raises:
    ConfigError: the URL holds a password, or a query, which may sign it.
    """
    if _PASSWORD_INSIDE.search(url):
        raise ConfigError(
            f'{setting}: the URL holds a password; take it out and give `password = "env:NAME"` or "file:/path"'
        )
    if "?" in url:
        raise ConfigError(f"{setting}: the URL ends in a query, which may hold a secret; give settings by their own names")


def redact(error: object) -> str:
    """An error in one line, fit for a log: no passwords or queries of URLs, not long, no dump after the first paragraph."""
    text = " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__
    text = _URL_QUERY.sub(r"\1?...", _URL_PASSWORD.sub("...@", text))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
