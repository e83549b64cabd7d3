"""The processor's features, cores and memory, with the limits of the control group."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pipeline.launch.doctor.finding import Finding, miss, note, ok
from pipeline.process.control_group import cores, cpu_quota, limits

MIB, GIB = 1 << 20, 1 << 30
SMALL_MEMORY = 2 * GIB  # front, one Paddle worker and a small model take about 1 GiB


def check_machine() -> list[Finding]:
    return [check_cpu(cpu_flags()), check_cores(cores(), cpu_quota()), check_memory(*memory())]


def check_cpu(flags: Collection[str]) -> Finding:
    """What each feature of /proc/cpuinfo allows; Paddle's own build starts at AVX."""
    if "avx" not in flags:
        return miss(
            "CPU", "no AVX", "Use a CPU, or a virtual machine's CPU model, with AVX: Paddle needs it."
        )
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "avx")
    bf16 = [name for name in ("avx512_bf16", "amx_bf16") if name in flags]
    int8 = ["avx512_vnni"] if "avx512_vnni" in flags else []
    found = ", ".join([vectors, *bf16, *int8])
    if not bf16:
        return ok("CPU", f"{found}; no avx512_bf16 and no amx_bf16: precision fp32 only")
    return ok("CPU", f"{found}; precision bf16 is possible")


def check_cores(usable: int, quota: float | None) -> Finding:
    found = f"{usable} usable"
    if quota is not None and quota < usable:
        remedy = (
            f"Set thread_num x instances to about {max(1, int(quota))}: more threads wait for each other."
        )
        return note("Cores", f"{found}, but the control group allows {quota:g}", remedy)
    if usable == 1:
        return note("Cores", found, "Front and worker share it: a second core serves about twice as much.")
    return ok("Cores", found)


def check_memory(available: int, total: int, limit: int | None) -> Finding:
    """Bytes that are available, those of the machine, and the control group's limit."""
    found = f"{available / GIB:.1f} GiB available of {total / GIB:.1f}"
    if limit is not None and limit < total:
        found += f", limited to {limit / GIB:.1f} GiB by the control group"
    if min(available, total if limit is None else limit) < SMALL_MEMORY:
        remedy = "Keep concurrency at 1: each instance of a Paddle model is a process with its own weights."
        return note("Memory", found, remedy)
    return ok("Memory", found)


def cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def memory() -> tuple[int, int, int | None]:
    """(available, total, the control group's limit), in bytes."""
    fields = {}
    for line in Path("/proc/meminfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    texts = [*limits("memory.max", "memory"), *limits("memory.limit_in_bytes", "memory")]
    limit = min((int(text) for text in texts if text.isdigit()), default=None)
    return fields["MemAvailable"], fields["MemTotal"], limit
