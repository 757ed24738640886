"""The table of accelerators: names in every spelling, plausible figures, and Google Cloud's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.accelerators import (
    ACCELERATORS,
    GCP_BUILT_IN,
    VERTEX_TYPES,
    canonical_name,
    find_accelerator,
    gcp_misfit,
    interconnect_of,
)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("k80", "K80"),
        ("p100", "P100"),
        ("v100", "V100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA_TESLA_T4", "T4"),
        ("nvidia-tesla-t4", "T4"),
        ("NVIDIA_TESLA_A100", "A100-40GB"),
        ("A100", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA_A100_80GB", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("H100", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("RTX3090", "RTX-3090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("a6000", "RTX-A6000"),
        ("L4", "L4"),
        ("MI300X", "MI300X"),
    ],
)
def test_names_in_every_spelling(spelling: str, name: str) -> None:
    """Of SkyPilot, Vertex AI, Gavel, Cephalo and nvidia-smi; an unknown one stays."""
    assert canonical_name(spelling) == name


def test_no_name_is_no_accelerator() -> None:
    assert find_accelerator("") is None
    assert canonical_name("") == ""


def test_figures_are_plausible() -> None:
    """Units are right: bytes per second and FLOP/s, and tensor cores are not slower than others."""
    for one in ACCELERATORS.values():
        assert 8 <= one.memory_gb <= 200
        assert 1e12 < one.fp32_flops_per_s < 1e14
        assert 1e11 < one.memory_bytes_per_s < 1e13
        assert one.tf32_flops_per_s == 0 or one.fp32_flops_per_s <= one.tf32_flops_per_s <= one.fp16_flops_per_s
        assert one.fp16_flops_per_s == 0 or one.fp16_flops_per_s > one.fp32_flops_per_s


def test_no_two_accelerators_share_a_name() -> None:
    for one in ACCELERATORS.values():
        for alias in (one.name, *one.aliases, *([one.vertex_type] if one.vertex_type else [])):
            assert find_accelerator(alias) is one, alias
    assert "NVIDIA_TESLA_V100" in VERTEX_TYPES


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "count", "why"),
    [
        ("n1-standard-8", "", 0, ""),
        ("n1-standard-8", "T4", 1, ""),
        ("n1-standard-8", "T4", 3, "T4 can be attached 1, 2, 4 times to a machine, not 3 times"),
        ("n1-standard-16", "V100", 1, "a machine with 1 x V100 may have 12 vCPUs and 78 GiB at most"),
        ("n1-standard-16", "V100", 2, ""),
        ("n1-highmem-16", "K80", 2, ""),
        ("e2-standard-8", "T4", 1, "e2-standard-8 cannot have T4: it can be attached to n1 machines"),
        ("n1-standard-8", "L4", 1, "n1-standard-8 cannot have L4: it comes with g2-standard-12"),
        ("a2-highgpu-1g", "", 0, "a2-highgpu-1g always has 1 x A100-40GB, not none"),
        ("a2-highgpu-2g", "A100-40GB", 1, "a2-highgpu-2g always has 2 x A100-40GB, not 1 x A100-40GB"),
        ("a2-highgpu-2g", "A100-40GB", 2, ""),
        ("g2-standard-999", "", 0, "exists with accelerators only"),
        ("g2-standard-999", "L4", 1, ""),
    ],
)
def test_which_machines_may_have_which_accelerators(machine_type: str, accelerator: str, count: int, why: str) -> None:
    found = gcp_misfit(machine_type, accelerator, count)
    assert found.startswith(why) if why.startswith(("n1", "e2")) else why in found
    assert bool(found) == bool(why)


def test_built_in_accelerators_are_in_the_table() -> None:
    assert {name for name, _ in GCP_BUILT_IN.values()} <= set(ACCELERATORS)


def test_what_connects_them() -> None:
    assert [interconnect_of(name, count) for name, count in (("V100", 8), ("T4", 4), ("V100", 1), ("x", 2))] == [
        "nvlink",
        "pcie",
        "none",
        "",
    ]


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_none(text: str) -> None:
    found = find_accelerator(text)
    assert found is None or ACCELERATORS[found.name] is found
    assert canonical_name(canonical_name(text)) == canonical_name(text)
