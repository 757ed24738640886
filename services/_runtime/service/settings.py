"""Settings from the environment: every mistake is named, none is ignored.

``TURNBUCKLE_<FIELD>`` sets a field that all services share, ``TURNBUCKLE_<SERVICE>__<FIELD>`` one of a service. A
secret may come from a file: ``TURNBUCKLE_<FIELD>_FILE``. An empty variable counts as unset. Lists are separated by
commas.
"""

from __future__ import annotations

import os
import socket
import types
import typing
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from schemas.permissions import uses
from schemas.roles import Role
from schemas.subjects import check_root, token
from services._runtime.bus.nats_contexts import ContextError, resolve
from services._runtime.bus.options import BusOptions, without_credentials
from services._runtime.settings_error import SettingsError
from services._runtime.telemetry.logging import LogFormat, LogLevel

PREFIX: Final = "TURNBUCKLE_"
_URL: Final = "nats_url"
_LISTS: Final = (tuple, list, set, frozenset)
_environ: ContextVar[Mapping[str, str]] = ContextVar("environ")


class SettingInfo(NamedTuple):
    """One setting, for documentation."""

    variable: str
    type: str
    default: str
    description: str
    secret: bool


class CommonSettings(BaseSettings):
    """What every service needs; the base of each service's settings."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    service: ClassVar[str] = "common"
    """Name of the service, in lower case; set by each subclass."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Fields that had another name in an earlier version: old name to new one. A variable of that name is an error."""
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Variables of this prefix that other programs read; any other unknown one is an error."""

    nats_url: Annotated[
        str | None,
        Field(description="URLs of the NATS servers, separated by commas; else NATS_URL, else nats://127.0.0.1:4222"),
    ] = None
    nats_context: Annotated[str | None, Field(description="name of a NATS context, as made by `nats context add`")] = (
        None
    )
    nats_user: Annotated[str | None, Field(description="user name at the NATS server")] = None
    nats_password: Annotated[SecretStr | None, Field(description="password at the NATS server")] = None
    nats_token: Annotated[SecretStr | None, Field(description="token for the NATS server")] = None
    nats_creds_file: Annotated[str | None, Field(description="path of a NATS credentials file")] = None
    nats_nkey_seed_file: Annotated[
        str | None, Field(description="path of an NKEY seed, as `turnbuckle nats config` writes one per user")
    ] = None
    nats_tls_ca_file: Annotated[
        str | None,
        Field(description="path of the CA certificates for the NATS server; set: nothing is sent without TLS"),
    ] = None
    nats_tls_cert_file: Annotated[
        str | None, Field(description="path of the client certificate for the NATS server")
    ] = None
    nats_tls_key_file: Annotated[str | None, Field(description="path of the key of the client certificate")] = None
    nats_tls_first: Annotated[
        bool | None,
        Field(
            description="true: TLS handshake before the NATS server's INFO (its handshake_first); false: after it; "
            "unset: before, and where the server speaks first, after"
        ),
    ] = None
    stream_replicas: Annotated[
        int, Field(ge=1, le=5, description="replicas of each stream that services create: 1, 3 or 5")
    ] = 1
    subject_root: Annotated[
        str, AfterValidator(check_root), Field(description="first token of every subject, stream and bucket")
    ] = "tb"
    log_level: Annotated[LogLevel, Field(description="least important level that is logged")] = "info"
    log_format: Annotated[LogFormat, Field(description="auto: JSON unless standard error is a terminal")] = "auto"
    health_host: Annotated[str, Field(description="address for /livez, /readyz and /metrics")] = "127.0.0.1"
    health_port: Annotated[
        int | None, Field(ge=0, le=65_535, description="port for /livez, /readyz and /metrics; 0: any; unset: none")
    ] = None
    metrics_applications: Annotated[
        int,
        Field(ge=0, le=10_000, description="applications with metrics of their own, at most, in each process; 0: none"),
    ] = 50
    shutdown_grace_s: Annotated[
        float, Field(gt=0, le=3600, description="seconds for a graceful shutdown after SIGTERM")
    ] = 8.0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - replaced by ours
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - a file nobody asked for
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - see *_FILE
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keywords win over the environment; there is no other source."""
        return (init_settings, _EnvironmentSource(settings_cls))

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Read the environment; keywords win.

        Raises:
            SettingsError: names every wrong or unknown variable.
        """
        env = os.environ if environ is None else environ
        problems = _unknown_variables(cls, env) + _secret_problems(cls, env)
        before = _environ.set(env)
        try:
            settings = cls(**overrides)
        except ValidationError as error:
            problems += _explain(cls, error, env)
        finally:
            _environ.reset(before)
        if problems:
            raise SettingsError(cls.service, problems)
        return settings

    def bus_options(self, environ: Mapping[str, str] | None = None) -> BusOptions:
        """How to reach the bus with these settings (and the NATS variables and contexts of ``environ``).

        Raises:
            SettingsError: the context cannot be used.
        """
        try:
            options = resolve(self.nats_url, self.nats_context, environ=environ)
        except ContextError as error:
            raise SettingsError(self.service, [str(error)]) from error
        given = {
            "user": self.nats_user,
            "password": self.nats_password.get_secret_value() if self.nats_password else None,
            "token": self.nats_token.get_secret_value() if self.nats_token else None,
            "creds_file": self.nats_creds_file,
            "nkey_seed_file": self.nats_nkey_seed_file,
            "tls_ca_file": self.nats_tls_ca_file,
            "tls_cert_file": self.nats_tls_cert_file,
            "tls_key_file": self.nats_tls_key_file,
            "tls_first": self.nats_tls_first,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.nats_url:
            changes["origin"] = f"{PREFIX}NATS_URL"
        changes |= _needs(self.service)
        return replace(
            options,
            name=f"turnbuckle-{self.service}",
            root=self.subject_root,
            replicas=self.stream_replicas,
            **changes,
        )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """As printed: a URL may hold a password."""
        for name, value in super().__repr_args__():
            yield name, _without_password(value) if name == _URL else value

    @classmethod
    def variable(cls, field: str) -> str:
        """The environment variable of a field."""
        middle = "" if field in CommonSettings.model_fields else f"{cls.service.upper()}__"
        return f"{PREFIX}{middle}{field.upper()}"

    @classmethod
    def describe(cls) -> list[SettingInfo]:
        """All settings with their units and defaults, for documentation."""
        return [
            SettingInfo(
                cls.variable(name),
                _type_name(field),
                "unset" if field.default is None else str(field.get_default(call_default_factory=True)),
                field.description or "",
                _is_secret(field),
            )
            for name, field in cls.model_fields.items()
        ]

    def print_config(self) -> str:
        """The settings in force as environment variables, secrets masked."""
        lines = []
        for name, field in type(self).model_fields.items():
            value = _without_password(self.nats_url) if name == _URL else getattr(self, name)
            text = ",".join(map(str, value)) if isinstance(value, _LISTS) else str(value)
            lines.append(f"{self.variable(name)}={'' if value is None else text}  # {field.description}")
        return "\n".join(lines)


def _without_password(urls: str | None) -> str | None:
    return None if urls is None else ",".join(without_credentials(url.strip()) for url in urls.split(","))


def _needs(service: str) -> dict[str, Any]:
    """Streams, buckets and stores of one of our services; a command needs what people may read."""
    try:
        needs = uses(Role.OBSERVER if service == "cli" else Role(service))
    except ValueError:
        return {}
    return {"streams": needs.streams, "buckets": needs.buckets, "object_stores": needs.object_stores}


def _check_node(name: str) -> str:
    token(name)
    return name


class NodeSettings(CommonSettings):
    """The base of services of which each host has its own."""

    node: Annotated[
        str, AfterValidator(_check_node), Field(min_length=1, description="name of this host, unique on the bus")
    ] = Field(default_factory=socket.gethostname)


class _EnvironmentSource(PydanticBaseSettingsSource):
    """Reads our variables; `CommonSettings.load` says from which environment."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Value (None: unset), key, and whether it needs decoding (never)."""
        settings = typing.cast("type[CommonSettings]", self.settings_cls)
        environ = _environ.get(os.environ)
        variable = settings.variable(field_name)
        text: str | None = environ.get(variable)
        if not text and _is_secret(field) and (path := environ.get(f"{variable}_FILE")):
            text = _read_secret(path)
        value: Any = text or None
        if value is not None and _is_list(field.annotation) and not value.startswith("["):
            value = [part.strip() for part in value.split(",") if part.strip()]
        return value, field_name, False

    def __call__(self) -> dict[str, Any]:
        """All values that are set."""
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value is not None}


def _read_secret(path: str) -> str | None:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None  # reported by _secret_problems


def _secret_problems(cls: type[CommonSettings], environ: Mapping[str, str]) -> list[str]:
    problems = []
    for name, field in cls.model_fields.items():
        variable = cls.variable(name)
        path = environ.get(f"{variable}_FILE") if _is_secret(field) else None
        if path and environ.get(variable):
            problems.append(f"{variable} and {variable}_FILE are both set: only one can be")
        elif path and not _read_secret(path):
            problems.append(f"{variable}_FILE: {path} cannot be read or is empty")
    return problems


def _unknown_variables(cls: type[CommonSettings], environ: Mapping[str, str]) -> list[str]:
    known = {cls.variable(name) for name in cls.model_fields}
    known |= {f"{cls.variable(name)}_FILE" for name, field in cls.model_fields.items() if _is_secret(field)}
    renamed = {cls.variable(old): cls.variable(new) for old, new in cls.renamed.items()}
    problems = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in known | cls.ignored:
            continue
        if variable in renamed:
            problems.append(f"{variable}: was renamed to {renamed[variable]}")
            continue
        service, separator, _ = variable.removeprefix(PREFIX).partition("__")
        mine = cls.service.upper()
        # TURNBUCKLE_ALLOCATOR__X is the allocator's business, unless the name is a slip of ours.
        if separator and service != mine and not get_close_matches(service, [mine], cutoff=0.8):
            continue
        near = get_close_matches(variable, known, n=1, cutoff=0.6)
        problems.append(f"{variable}: unknown variable" + (f"; did you mean {near[0]}?" if near else ""))
    return problems


def _explain(cls: type[CommonSettings], error: ValidationError, environ: Mapping[str, str]) -> list[str]:
    problems = []
    for detail in error.errors(include_url=False, include_context=True):
        field = str(detail["loc"][0]) if detail["loc"] else ""
        if field not in cls.model_fields:
            problems.append(f"{field or cls.service}: {detail['msg']}")
            continue
        variable = cls.variable(field)
        value = environ.get(variable, "")
        if not value and detail["type"] == "missing":
            problems.append(f"{variable}: must be set ({cls.model_fields[field].description})")
            continue
        shown = variable if _is_secret(cls.model_fields[field]) or not value else f"{variable}={value}"
        choices = [part.strip(" '") for part in str(detail.get("ctx", {}).get("expected", "")).split(",")]
        choices = [choice for part in choices for choice in part.replace("' or '", "|").split("|")]
        near = get_close_matches(value, choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        problems.append(f"{shown}: {detail['msg']} ({cls.model_fields[field].description}){hint}")
    return problems


def _parts(annotation: Any) -> list[Any]:
    """The members of a union, or the annotation itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for member in typing.get_args(annotation) for part in _parts(member)]
    return [annotation]


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in _parts(field.annotation)


def _is_list(annotation: Any) -> bool:
    return any((typing.get_origin(part) or part) in _LISTS for part in _parts(annotation))


def _type_name(field: FieldInfo) -> str:
    parts = [part for part in _parts(field.annotation) if part is not type(None)]
    names = [
        typing.get_args(part) if typing.get_origin(part) is typing.Literal else [getattr(part, "__name__", part)]
        for part in parts
    ]
    return " | ".join(str(name) for part in names for name in part)
