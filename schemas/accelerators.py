"""Known accelerators (GPUs) with their data sheets' figures, and which of Google Cloud's machines may have them.

One table for catalogue, import and submission. Figures are peaks without sparsity; sustained rates are lower.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

NVLINK: Final = "nvlink"
PCIE: Final = "pcie"
NO_INTERCONNECT: Final = "none"
"""Of a machine with a single accelerator."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One model of accelerator. Rates of 0: the hardware has no such mode."""

    name: str
    """As in `schemas.jobs.Configuration.accelerator`."""
    memory_gb: float
    """GiB, as the vendor rounds them; error correction and the driver take some of it."""
    fp32_flops_per_s: float
    tf32_flops_per_s: float
    """Tensor cores, TensorFloat-32."""
    fp16_flops_per_s: float
    """Tensor cores with accumulation in single precision, where there are any; else the cores' rate."""
    memory_bytes_per_s: float
    interconnect: str
    """Between accelerators of one machine as clouds sell them: `NVLINK` or `PCIE`."""
    aliases: tuple[str, ...] = ()
    """Further names, as `_plain` leaves them: of SkyPilot, Vertex AI, Gavel, Slurm and nvidia-smi."""
    vertex_type: str = ""
    """Vertex AI's ``acceleratorType``; empty: it offers none."""


_T: Final = 1e12
_G: Final = 1e9

_ALL: Final = (
    # NVIDIA Tesla K80 data sheet (2015): 24 GB, 8.73 TFLOPS and 480 GB/s of a board with two GK210 dies. A cloud's K80,
    # as torch's device, is one die.
    Accelerator("K80", 12, 4.365 * _T, 0, 0, 240 * _G, PCIE, vertex_type="NVIDIA_TESLA_K80"),
    # NVIDIA Tesla P4 data sheet (2016): 8 GB, 5.5 TFLOPS, 192 GB/s.
    Accelerator("P4", 8, 5.5 * _T, 0, 0, 192 * _G, PCIE, vertex_type="NVIDIA_TESLA_P4"),
    # NVIDIA Tesla P40 data sheet (2016): 24 GB, 12 TFLOPS, 346 GB/s.
    Accelerator("P40", 24, 12 * _T, 0, 0, 346 * _G, PCIE),
    # NVIDIA Tesla P100 PCIe data sheet (2016): 16 GB, 9.3 TFLOPS, half precision 18.7, 732 GB/s.
    Accelerator("P100", 16, 9.3 * _T, 0, 18.7 * _T, 732 * _G, PCIE, ("p100pcie16gb",), vertex_type="NVIDIA_TESLA_P100"),
    # NVIDIA V100 data sheet (2020), SXM2: 15.7 TFLOPS, tensor 125, 900 GB/s, 16 or 32 GB.
    Accelerator(
        "V100",
        16,
        15.7 * _T,
        0,
        125 * _T,
        900 * _G,
        NVLINK,
        ("v100sxm2", "v100sxm216gb", "v10016gb", "v100x16"),
        vertex_type="NVIDIA_TESLA_V100",
    ),
    Accelerator("V100-32GB", 32, 15.7 * _T, 0, 125 * _T, 900 * _G, NVLINK, ("v100sxm232gb", "v100sxm332gb", "v100x32")),
    # The same sheet, PCIe: 14 TFLOPS, tensor 112.
    Accelerator("V100-PCIe", 16, 14 * _T, 0, 112 * _T, 900 * _G, PCIE, ("v100pcie16gb", "v100pciex16")),
    # NVIDIA T4 data sheet (2019): 16 GB, 8.1 TFLOPS, FP16/FP32 mixed 65, 320 GB/s.
    Accelerator("T4", 16, 8.1 * _T, 0, 65 * _T, 320 * _G, PCIE, vertex_type="NVIDIA_TESLA_T4"),
    # NVIDIA A10G data sheet (AWS G5): 24 GB, FP32 35 TFLOPS, TF32 35, FP16 70, 600 GB/s.
    Accelerator("A10G", 24, 35 * _T, 35 * _T, 70 * _T, 600 * _G, PCIE),
    # NVIDIA A100 data sheet (2022), SXM4: FP32 19.5 TFLOPS, TF32 156, FP16 312; 40 GB: 1,555 GB/s, 80 GB: 2,039.
    Accelerator(
        "A100-40GB",
        40,
        19.5 * _T,
        156 * _T,
        312 * _T,
        1_555 * _G,
        NVLINK,
        ("a100", "a100sxm440gb", "a100x40"),
        vertex_type="NVIDIA_TESLA_A100",
    ),
    Accelerator(
        "A100-80GB",
        80,
        19.5 * _T,
        156 * _T,
        312 * _T,
        2_039 * _G,
        NVLINK,
        ("a100sxm480gb", "a10080gbsxm", "a100x80"),
        vertex_type="NVIDIA_A100_80GB",
    ),
    # NVIDIA A40 data sheet (2021): 48 GB, 37.4 TFLOPS, TF32 74.8, FP16 149.7, 696 GB/s.
    Accelerator("A40", 48, 37.4 * _T, 74.8 * _T, 149.7 * _T, 696 * _G, PCIE),
    # NVIDIA L4 data sheet (2023): 24 GB, 30.3 TFLOPS; TF32 120 and FP16 242 with sparsity, half without; 300 GB/s.
    Accelerator("L4", 24, 30.3 * _T, 60 * _T, 121 * _T, 300 * _G, PCIE, vertex_type="NVIDIA_L4"),
    # NVIDIA L40S data sheet (2023): 48 GB, 91.6 TFLOPS, TF32 183, FP16 362, 864 GB/s.
    Accelerator("L40S", 48, 91.6 * _T, 183 * _T, 362 * _T, 864 * _G, PCIE),
    # NVIDIA H100 data sheet (2023), SXM5: FP32 67 TFLOPS; TF32 989 and FP16 1,979 with sparsity; 80 GB, 3.35 TB/s.
    Accelerator(
        "H100-80GB",
        80,
        67 * _T,
        494.5 * _T,
        989.5 * _T,
        3_350 * _G,
        NVLINK,
        ("h100", "h100sxm", "h100sxm5", "h10080gbhbm3"),
        vertex_type="NVIDIA_H100_80GB",
    ),
    # The same with more network between machines (Google Cloud's a3-megagpu).
    Accelerator(
        "H100-MEGA",
        80,
        67 * _T,
        494.5 * _T,
        989.5 * _T,
        3_350 * _G,
        NVLINK,
        ("h100mega80gb",),
        vertex_type="NVIDIA_H100_MEGA_80GB",
    ),
    # NVIDIA H100 data sheet (2023), PCIe: FP32 51 TFLOPS; TF32 756 and FP16 1,513 with sparsity; 80 GB, 2 TB/s.
    Accelerator("H100-PCIe", 80, 51 * _T, 378 * _T, 756.5 * _T, 2_000 * _G, PCIE, ("h100pcie80gb",)),
    # NVIDIA H100 data sheet (2024), NVL: FP32 60 TFLOPS; TF32 835 and FP16 1,671 with sparsity; 94 GB, 3.9 TB/s.
    Accelerator("H100-NVL", 94, 60 * _T, 417.5 * _T, 835.5 * _T, 3_900 * _G, PCIE, ("h100nvl94gb",)),
    # NVIDIA H200 data sheet (2024), SXM: 141 GB, 4.8 TB/s; arithmetic as of the H100 SXM.
    Accelerator(
        "H200",
        141,
        67 * _T,
        494.5 * _T,
        989.5 * _T,
        4_800 * _G,
        NVLINK,
        ("h200sxm", "h200141gb"),
        vertex_type="NVIDIA_H200_141GB",
    ),
    # NVIDIA Turing architecture white paper (2018), GeForce RTX 2080 Ti at reference clocks: 11 GB, 13.4 TFLOPS, FP16
    # tensor with FP32 accumulation 53.8, 616 GB/s.
    Accelerator("RTX-2080-Ti", 11, 13.4 * _T, 0, 53.8 * _T, 616 * _G, PCIE),
    # The same paper, Quadro RTX 6000: 24 GB, 16.3 TFLOPS, 130.5, 672 GB/s.
    Accelerator("RTX-6000", 24, 16.3 * _T, 0, 130.5 * _T, 672 * _G, PCIE),
    # NVIDIA Ampere GA102 white paper (2020), GeForce RTX 3090: 24 GB, 35.6 TFLOPS, TF32 35.6, FP16 with FP32
    # accumulation 71, 936 GB/s.
    Accelerator("RTX-3090", 24, 35.6 * _T, 35.6 * _T, 71 * _T, 936 * _G, PCIE),
    # NVIDIA RTX A6000 data sheet (2021): 48 GB, 38.7 TFLOPS, 768 GB/s; tensor figures of the GA102 paper: 77.4, 154.8.
    Accelerator("RTX-A6000", 48, 38.7 * _T, 77.4 * _T, 154.8 * _T, 768 * _G, PCIE, ("a6000",)),
    # NVIDIA Ada architecture white paper (2022), GeForce RTX 4090: 24 GB, 82.6 TFLOPS, TF32 82.6, FP16 with FP32
    # accumulation 165.2, 1,008 GB/s.
    Accelerator("RTX-4090", 24, 82.6 * _T, 82.6 * _T, 165.2 * _T, 1_008 * _G, PCIE),
    # NVIDIA RTX 6000 Ada data sheet (2023): 48 GB, 91.1 TFLOPS, 960 GB/s; tensor, of the Ada paper: 182.1, 364.2.
    Accelerator("RTX-6000-Ada", 48, 91.1 * _T, 182.1 * _T, 364.2 * _T, 960 * _G, PCIE, ("rtx6000adageneration",)),
)


def _plain(name: str) -> str:
    """Return a name without the maker's and brand's words, case and punctuation: ``NVIDIA_TESLA_T4`` is ``t4``."""
    words = re.split(r"[^a-z0-9]+", name.casefold())
    return "".join(word for word in words if word not in {"nvidia", "tesla", "geforce", "quadro"})


ACCELERATORS: Final[Mapping[str, Accelerator]] = MappingProxyType({one.name: one for one in _ALL})
"""By name."""
VERTEX_TYPES: Final[Mapping[str, Accelerator]] = MappingProxyType(
    {one.vertex_type: one for one in _ALL if one.vertex_type}
)
"""By Vertex AI's ``acceleratorType``."""
_BY_PLAIN_NAME: Final = {_plain(alias): one for one in _ALL for alias in (one.name, *one.aliases, one.vertex_type)}


def find_accelerator(name: str) -> Accelerator | None:
    """Return the accelerator of a name in any of the usual spellings; None: not in the table."""
    return _BY_PLAIN_NAME.get(_plain(name)) if name else None


def canonical_name(name: str) -> str:
    """Return the table's name of an accelerator; one that is not in the table keeps its own."""
    found = find_accelerator(name)
    return name if found is None else found.name


def interconnect_of(name: str, count: int) -> str:
    """Return what connects `count` such accelerators in one machine; empty: not known."""
    found = find_accelerator(name)
    if found is None or count < 1:
        return ""
    return found.interconnect if count > 1 else NO_INTERCONNECT


# -- Google Cloud (Compute Engine's pages "GPU machine types" and "Attach GPUs to N1 VMs", read into SkyPilot's
# gcp_catalog.py and into github.com/Cyclenerd/google-cloud-pricing-cost-calculator) ---------------------------------

GCP_BUILT_IN: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        **{f"a2-highgpu-{count}g": ("A100-40GB", count) for count in (1, 2, 4, 8)},
        "a2-megagpu-16g": ("A100-40GB", 16),
        **{f"a2-ultragpu-{count}g": ("A100-80GB", count) for count in (1, 2, 4, 8)},
        **{f"a3-highgpu-{count}g": ("H100-80GB", count) for count in (1, 2, 4, 8)},
        "a3-megagpu-8g": ("H100-MEGA", 8),
        "a3-ultragpu-8g": ("H200", 8),
        **{f"g2-standard-{vcpu}": ("L4", 1) for vcpu in (4, 8, 12, 16, 32)},
        "g2-standard-24": ("L4", 2),
        "g2-standard-48": ("L4", 4),
        "g2-standard-96": ("L4", 8),
    }
)
"""Accelerator and number that a machine type always has."""
_GCP_FAMILIES: Final = re.compile(r"(a[2-9]x?|g[2-9])-")
"""Machine families that exist with accelerators only."""
GCP_ATTACHABLE: Final[Mapping[str, Mapping[int, tuple[int, int]]]] = MappingProxyType(
    {
        "K80": {1: (8, 52), 2: (16, 104), 4: (32, 208), 8: (64, 208)},
        "P4": {1: (24, 156), 2: (48, 312), 4: (96, 624)},
        "P100": {1: (16, 104), 2: (32, 208), 4: (96, 624)},
        "V100": {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)},
        "T4": {1: (48, 312), 2: (48, 312), 4: (96, 624)},
    }
)
"""Accelerators for N1 machines: the numbers that there are, each with the most vCPUs and GiB of its machine."""
_N1: Final = re.compile(r"n1-(?P<kind>standard|highmem|highcpu)-(?P<vcpu>[0-9]{1,3})")
_N1_GB_PER_VCPU: Final = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}


_ATTACHED: Final = re.compile(r"(?P<machine_type>.+)\+(?P<count>[0-9]{1,4})x(?P<accelerator>.+)")


def with_attached(machine_type: str, accelerator: str, count: int) -> str:
    """Return the name of a machine with attached accelerators in catalogues and records: ``n1-standard-8+1xT4``."""
    return f"{machine_type}+{count}x{accelerator}"


def without_attached(name: str) -> tuple[str, str, int]:
    """Return machine type, accelerator and number of a name of `with_attached`; another name's are empty and 0."""
    match = _ATTACHED.fullmatch(name)
    if match is None:
        return name, "", 0
    return match["machine_type"], canonical_name(match["accelerator"]), int(match["count"])


def gcp_needs_accelerators(machine_type: str) -> bool:
    """Whether a machine type exists with accelerators only."""
    return _GCP_FAMILIES.match(machine_type) is not None


def gcp_misfit(machine_type: str, accelerator: str, count: int) -> str:
    """Return why a machine type of Google Cloud cannot have so many accelerators, and the remedy; empty: it can.

    Args:
        machine_type: Such as ``n1-standard-8``.
        accelerator: A name of `ACCELERATORS`; empty: none.
        count: Per machine.
    """
    built_in = GCP_BUILT_IN.get(machine_type)
    if built_in is not None and built_in != (accelerator, count):
        found = f"{count} x {accelerator}" if accelerator else "none"
        return f"{machine_type} always has {built_in[1]} x {built_in[0]}, not {found}"
    if gcp_needs_accelerators(machine_type):  # of a newer type of such a family, Google decides
        return "" if accelerator else f"{machine_type} exists with accelerators only: name them"
    return _attachment_misfit(machine_type, accelerator, count) if accelerator else ""


def _attachment_misfit(machine_type: str, accelerator: str, count: int) -> str:
    limits = GCP_ATTACHABLE.get(accelerator)
    if limits is None:
        homes = sorted(name for name, (kind, _) in GCP_BUILT_IN.items() if kind == accelerator)
        return f"{machine_type} cannot have {accelerator}" + (f": it comes with {', '.join(homes)}" if homes else "")
    size = _N1.fullmatch(machine_type)
    if size is None:
        return f"{machine_type} cannot have {accelerator}: it can be attached to n1 machines"
    if count not in limits:
        return f"{accelerator} can be attached {', '.join(map(str, limits))} times to a machine, not {count} times"
    most_vcpu, most_gb = limits[count]
    vcpu = int(size["vcpu"])
    if vcpu > most_vcpu or vcpu * _N1_GB_PER_VCPU[size["kind"]] > most_gb:
        return f"a machine with {count} x {accelerator} may have {most_vcpu} vCPUs and {most_gb} GiB at most"
    return ""
