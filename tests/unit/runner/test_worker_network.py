"""The workers' own network, as it is set: what is refused, and with which words."""

from __future__ import annotations

import pytest

from services._runtime.settings_error import UnusableSettingsError
from services.runner.settings import RunnerSettings
from services.runner.worker_network import device_with, worker_network


def settings(**changes: object) -> RunnerSettings:
    return RunnerSettings.load({}, **changes)


def test_without_a_setting_workers_are_where_the_runner_is() -> None:
    assert worker_network(settings()) is None


@pytest.mark.parametrize(
    ("user", "address", "reason"),
    [
        (1000, "10.0.0.1", "only root enters a network namespace, and the runner is not root"),
        (0, None, "is not known; set TURNBUCKLE_RUNNER__ADDRESS"),
        (0, "10.0.0.1", "/run/netns/no-such-network cannot be entered: No such file or directory"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    user: int, address: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runner.worker_network.os.geteuid", lambda: user)

    with pytest.raises(UnusableSettingsError) as caught:
        worker_network(settings(network_namespace="no-such-network", address=address))

    assert "TURNBUCKLE_RUNNER__NETWORK_NAMESPACE=no-such-network" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(("address", "device"), [("127.0.0.1", "lo"), ("192.0.2.1", None), ("bus.example", None)])
def test_a_device_is_found_by_its_address(address: str, device: str | None) -> None:
    assert device_with(address) == device
