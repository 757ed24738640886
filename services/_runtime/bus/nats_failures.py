"""Error messages for failed NATS connections, each with a remedy."""

from __future__ import annotations

import ssl
from typing import Final

from services._runtime.bus.api import BusError, BusSettingsError, BusUnavailableError, CredentialsRefusedError
from services._runtime.bus.nats_tls import SilentServerError, TlsMissingError
from services._runtime.bus.options import BusOptions

_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAME: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL's x509_vfy.h, as those above."""


def describe(error: BaseException) -> str:
    """An error's text: nats-py's message, else the type name."""
    text = str(error).removeprefix("nats: ").strip()
    return text or type(error).__name__


def failure(options: BusOptions, error: BaseException | None) -> BusError:
    """The error to raise after the last connection attempt failed with `error` (None: it has not ended)."""
    if error is not None and (why := refusal(options, error)) is not None:
        return why
    reason = f" ({describe(error)})" if error is not None else ""
    return BusUnavailableError(
        f"no NATS server at {_where(options)}: start one with `turnbuckle up` or set NATS_URL{reason}"
    )


def refusal(options: BusOptions, error: BaseException) -> BusError | None:
    """The error to raise if a server was reached but cannot be used or rejects the client; else None."""
    if isinstance(error, TlsMissingError):
        return BusSettingsError(
            f"the NATS server at {_where(options)} speaks without TLS, and {_tls_asked_by(options)} asks for it:"
            " nothing was sent. Give the server certificates, or do without encryption (nats://, no CA file). If it"
            " has certificates, a man in the middle strips TLS"
        )
    if isinstance(error, ssl.SSLError):
        return _tls_failure(options, error)
    if isinstance(error, SilentServerError):
        tls = "" if options.tls_ca_file else ", or it waits for TLS: then use tls://"
        return BusUnavailableError(
            f"the server at {_where(options)} accepts connections but sends nothing: it hangs{tls}"
        )
    if "authorization" in str(error).lower():
        return CredentialsRefusedError(
            f"the NATS server at {_where(options)} refuses the credentials: {_credentials(options)}"
        )
    return None


def _tls_failure(options: BusOptions, error: ssl.SSLError) -> BusError:
    server = f"the NATS server at {_where(options)}"
    if "CERTIFICATE_REQUIRED" in (error.reason or ""):
        return BusSettingsError(
            f"{server} requires a client certificate: set TURNBUCKLE_NATS_TLS_CERT_FILE and"
            " TURNBUCKLE_NATS_TLS_KEY_FILE"
        )
    if not isinstance(error, ssl.SSLCertVerificationError):
        return BusUnavailableError(f"TLS with {server} fails: {describe(error)}")
    code, reason = error.verify_code, error.verify_message.rstrip(".")
    if code == _EXPIRED:
        return BusSettingsError(
            f"the certificate of {server} has expired: renew it (`turnbuckle nats config` does with its test CA) and"
            " reload the server"
        )
    if code == _NOT_YET_VALID:
        return BusSettingsError(f"the certificate of {server} is not valid yet: are the clocks right?")
    if code in _OTHER_NAME:
        return BusSettingsError(
            f"the certificate of {server} is for another name ({reason}): connect by a name that it has, or make it for"
            " this one (`turnbuckle nats config --host NAME`)"
        )
    trusted = f"the CA in {options.tls_ca_file}" if options.tls_ca_file else "a CA that this machine trusts"
    return BusSettingsError(
        f"the certificate of {server} was not signed by {trusted} ({reason}): set TURNBUCKLE_NATS_TLS_CA_FILE to the CA"
        " of that server"
    )


def _where(options: BusOptions) -> str:
    return f"{options.address} (from {options.origin})"


def _tls_asked_by(options: BusOptions) -> str:
    if any(url.startswith("tls://") for url in options.servers):
        return "tls://"
    if options.tls_ca_file:
        return "TURNBUCKLE_NATS_TLS_CA_FILE"
    return "TURNBUCKLE_NATS_TLS_CERT_FILE" if options.tls_cert_file else "TURNBUCKLE_NATS_TLS_FIRST"


def _credentials(options: BusOptions) -> str:
    """The credentials in use and what may be wrong with them; contains no secret."""
    if options.nkey_seed_file:
        return (
            f"it does not know the key in {options.nkey_seed_file} (TURNBUCKLE_NATS_NKEY_SEED_FILE). Is it one of this"
            " server's users.conf, and was the server reloaded since that was written?"
        )
    if options.creds_file:
        return f"it does not take the credentials file {options.creds_file}"
    if options.user or options.password:
        return f"check the user {options.user or ''} and the password".replace("  ", " ")
    if options.token:
        return "check the token"
    if any("@" in url for url in options.servers):
        return "check the user and password, or the token, in the URL"
    return "none were given: set TURNBUCKLE_NATS_NKEY_SEED_FILE to a key that `turnbuckle nats config` has written"
