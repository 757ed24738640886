"""Settings: names, types, secrets, and mistakes that are all told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, SecretStr

from scripts.generate_docs import settings_classes
from services._runtime.service.settings import CommonSettings
from services._runtime.settings_error import SettingsError


class DemoSettings(CommonSettings):
    service: ClassVar[str] = "demo"
    renamed: ClassVar[Mapping[str, str]] = {"tick_s": "period_s"}

    node: Annotated[str, Field(description="name of this host")]
    period_s: Annotated[float, Field(gt=0, description="seconds between samples")] = 0.1
    color: Annotated[Literal["red", "green"], Field(description="a colour")] = "red"
    mounts: Annotated[tuple[str, ...], Field(description="paths")] = ()
    limits: Annotated[tuple[int, ...] | None, Field(description="bytes")] = None
    key: Annotated[SecretStr | None, Field(description="a secret")] = None


REQUIRED = {"TURNBUCKLE_DEMO__NODE": "n1"}


def problems(environ: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        DemoSettings.load(environ)
    return caught.value.problems


def test_defaults() -> None:
    """Only what has no default must be given."""
    settings = DemoSettings.load(REQUIRED)

    assert (settings.node, settings.period_s, settings.subject_root, settings.health_port) == ("n1", 0.1, "tb", None)


def test_common_and_own_variables() -> None:
    """Common fields have the short prefix, own fields the service's."""
    environ = {"TURNBUCKLE_SUBJECT_ROOT": "x", "TURNBUCKLE_HEALTH_PORT": "0", "TURNBUCKLE_DEMO__PERIOD_S": "2.5"}
    settings = DemoSettings.load(REQUIRED | environ)

    assert (settings.subject_root, settings.health_port, settings.period_s) == ("x", 0, 2.5)


def test_lists_are_separated_by_commas() -> None:
    """Spaces around are dropped; JSON works too."""
    plain = DemoSettings.load(REQUIRED | {"TURNBUCKLE_DEMO__MOUNTS": "/a, /b", "TURNBUCKLE_DEMO__LIMITS": "1,2"})

    assert plain.mounts == ("/a", "/b")
    assert plain.limits == (1, 2)


def test_keywords_win() -> None:
    """Tests and `turnbuckle up` override the environment."""
    assert DemoSettings.load(REQUIRED | {"TURNBUCKLE_SUBJECT_ROOT": "x"}, subject_root="y").subject_root == "y"


def test_empty_is_unset() -> None:
    """Compose files pass empty variables for what is not set."""
    assert DemoSettings.load(REQUIRED | {"TURNBUCKLE_SUBJECT_ROOT": ""}).subject_root == "tb"


def test_missing_variable() -> None:
    """The text says what it is for."""
    assert problems({}) == ["TURNBUCKLE_DEMO__NODE: must be set (name of this host)"]


def test_every_mistake_is_told_at_once() -> None:
    """Not one per start."""
    found = problems(
        {
            "TURNBUCKLE_DEMO__NOED": "n1",
            "TURNBUCKLE_DEMO__PERIOD_S": "-1",
            "TURNBUCKLE_DEMO__COLOR": "gren",
            "TURNBUCKLE_SUBJECT_ROOT": "a.b",
            "TURNBUCKLE_LOGLEVEL": "info",
        }
    )

    assert len(found) == 6
    text = "\n".join(found)
    assert "TURNBUCKLE_DEMO__NOED: unknown variable; did you mean TURNBUCKLE_DEMO__NODE?" in text
    assert "TURNBUCKLE_LOGLEVEL: unknown variable; did you mean TURNBUCKLE_LOG_LEVEL?" in text
    assert "TURNBUCKLE_DEMO__PERIOD_S=-1: Input should be greater than 0 (seconds between samples)" in text
    assert "TURNBUCKLE_DEMO__COLOR=gren" in text
    assert "did you mean 'green'?" in text
    assert "TURNBUCKLE_SUBJECT_ROOT=a.b" in text
    assert "TURNBUCKLE_DEMO__NODE: must be set" in text


def test_a_renamed_variable_names_the_new_one() -> None:
    """Exactly, however unlike the old one it is."""
    found = problems(REQUIRED | {"TURNBUCKLE_DEMO__TICK_S": "0.2"})

    assert found == ["TURNBUCKLE_DEMO__TICK_S: was renamed to TURNBUCKLE_DEMO__PERIOD_S"]


@pytest.mark.parametrize("settings", settings_classes(), ids=lambda settings: settings.service)
def test_renamed_variables_lead_to_fields_that_exist(settings: type[CommonSettings]) -> None:
    fields = set(settings.model_fields)

    assert set(settings.renamed.values()) <= fields
    assert not fields & set(settings.renamed)


def test_variables_of_other_services_are_ignored() -> None:
    """One environment file serves all of them; a slip in our own name is told."""
    DemoSettings.load(REQUIRED | {"TURNBUCKLE_ALLOCATOR__STEP_S": "1", "UNRELATED": "x"})

    assert "TURNBUCKLE_DEMOO__NODE: unknown variable" in problems(REQUIRED | {"TURNBUCKLE_DEMOO__NODE": "x"})[0]


def test_secrets_from_files(tmp_path: Path) -> None:
    """Read, stripped, masked; both ways at once or a missing file are mistakes."""
    path = tmp_path / "key"
    path.write_text("hush\n")
    settings = DemoSettings.load(REQUIRED | {"TURNBUCKLE_DEMO__KEY_FILE": str(path)})

    assert settings.key is not None
    assert settings.key.get_secret_value() == "hush"
    assert "hush" not in settings.print_config()
    assert "TURNBUCKLE_DEMO__KEY=**********" in settings.print_config()
    both = {"TURNBUCKLE_DEMO__KEY_FILE": str(path), "TURNBUCKLE_DEMO__KEY": "x"}
    assert "only one" in problems(REQUIRED | both)[0]
    assert "cannot be read" in problems(REQUIRED | {"TURNBUCKLE_DEMO__KEY_FILE": str(tmp_path / "nothing")})[0]


def test_wrong_secret_is_not_shown() -> None:
    """An error message ends in logs."""

    class Strict(CommonSettings):
        service: ClassVar[str] = "strict"
        key: Annotated[SecretStr, Field(min_length=20, description="a long secret")]

    with pytest.raises(SettingsError, match="TURNBUCKLE_STRICT__KEY") as caught:
        Strict.load({"TURNBUCKLE_STRICT__KEY": "tooshort"})

    assert "tooshort" not in str(caught.value)


def test_print_config_can_be_read_back() -> None:
    """It is an environment file."""
    settings = DemoSettings.load(REQUIRED | {"TURNBUCKLE_DEMO__MOUNTS": "/a,/b"})
    lines = (line.partition("  #")[0].partition("=") for line in settings.print_config().splitlines())

    assert DemoSettings.load({name: value for name, _, value in lines}) == settings


def test_every_field_is_described() -> None:
    """The documentation is made from this."""
    described = {info.variable: info for info in DemoSettings.describe()}

    assert all(info.description for info in described.values())
    assert described["TURNBUCKLE_DEMO__COLOR"].type == "red | green"
    assert described["TURNBUCKLE_NATS_PASSWORD"].secret
    assert described["TURNBUCKLE_SHUTDOWN_GRACE_S"].default == "8.0"


def test_bus_options() -> None:
    """Ours wins over NATS_URL; credentials and root are carried over."""
    nowhere = {"XDG_CONFIG_HOME": "/nonexistent", "NATS_URL": "nats://a:1"}
    plain = DemoSettings.load(REQUIRED | nowhere).bus_options(nowhere)
    ours = DemoSettings.load(
        REQUIRED | nowhere | {"TURNBUCKLE_NATS_URL": "nats://b:2,nats://c:3", "TURNBUCKLE_NATS_PASSWORD": "p"},
        subject_root="x",
    ).bus_options(nowhere)

    assert (plain.servers, plain.origin) == (("nats://a:1",), "NATS_URL")
    assert (ours.servers, ours.origin) == (("nats://b:2", "nats://c:3"), "TURNBUCKLE_NATS_URL")
    assert (ours.password, ours.root, ours.name) == ("p", "x", "turnbuckle-demo")


def test_unknown_context_is_a_settings_error() -> None:
    """With the variable's meaning in the text."""
    settings = DemoSettings.load(REQUIRED, nats_context="nowhere")

    with pytest.raises(SettingsError, match="no NATS context 'nowhere'"):
        settings.bus_options({"XDG_CONFIG_HOME": "/nonexistent"})
