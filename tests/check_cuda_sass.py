#!/usr/bin/env python3
"""The machine code of the CUDA kernels that a step spends its time in, for the sm_90 of an H100: accesses of 16
bytes, no local memory, registers, and how many warps a multiprocessor can have of it. Reads what nvcc left in the
build directory; needs cuobjdump, of CUDA's toolkit or of Triton's wheel."""

import glob
import os
import re
import shutil
import subprocess
import sys

# File, mangled name's part, threads of a block; the least LDG and STG of 16 bytes, the most registers, the least warps.
HOT = [
    ("norm", "norm_kernelI4bf16Li8ELi32E", 256, 10, 2, 48, 40),
    ("norm", "norm_kernelIfLi4ELi32E", 256, 10, 2, 48, 40),
    ("norm_backward", "norm_backward_kernelI4bf16Li8ELi32E", 256, 8, 1, 64, 32),
    ("norm_backward", "norm_backward_kernelIfLi4ELi32E", 256, 8, 1, 64, 32),
    ("norm_backward", "norm_gradients_kernelI4bf16Li8ELi3ELi32E", 128, 12, 3, 168, 12),
    ("norm_backward", "norm_gradients_kernelIfLi4ELi3ELi32E", 128, 12, 3, 128, 16),
    ("norm_backward", "norm_gradients_kernelI4bf16Li8ELi2ELi256E", 256, 8, 2, 128, 16),
    ("reduce", "sum_columns_kernelILi8ENS_12plain_valuesI4bf16", 256, 4, 0, 64, 32),
    ("reduce", "sum_columns_kernelILi4ENS_12plain_valuesIf", 256, 4, 0, 64, 32),
    ("head", "head_kernelI4bf16S1_Li8ELi1024E", 1024, 2, 1, 64, 32),
    ("head", "head_kernelIf4bf16Li8ELi1024E", 1024, 4, 1, 64, 32),
    ("head", "head_kernelIffLi8ELi1024E", 1024, 4, 2, 64, 32),
    ("step", "optimizeINS_4adamELi4E", 256, 4, 3, 48, 40),
    ("step", "optimizeINS_3sgdILb1EEELi4E", 256, 3, 2, 48, 40),
    ("step", "norm_partsILi4E", 256, 1, 0, 40, 48),
    ("element", "map_kernelINS_4castIf4bf16EELi4E", 256, 1, 0, 32, 64),
    ("element", "map_kernelINS_4castIf4bf16EELi8E", 256, 3, 1, 48, 40),
    ("element", "map_kernelINS_4castI4bf16fEELi8E", 256, 2, 2, 48, 40),
    ("element", "map_kernelINS_5unaryI4bf16NS_9gelu_tanhEEELi8E", 256, 2, 1, 48, 40),
    ("element", "map_kernelINS_6binaryI4bf16NS_18gelu_tanh_backwardEEELi8E", 256, 3, 1, 48, 40),
    ("embedding", "embedding_kernelI4bf16Li8E", 256, 2, 1, 48, 40),
    ("rope", "rope_kernelI4bf16Li8ELb0E", 256, 5, 3, 56, 32),
    ("rope", "rope_kernelI4bf16Li8ELb1E", 256, 5, 3, 56, 32),
    ("rope", "rope_kernelIfLi4ELb0E", 256, 5, 3, 48, 40),
    ("rope", "rope_kernelIfLi4ELb1E", 256, 5, 3, 48, 40),
]
# Of each cosine and sine of a pair, the path of sinf and cosf for angles beyond 105,615 has a table in local memory.
LOCAL = {f"rope_kernelI{kind}ELb{interleaved}E": pairs * 10
         for kind, pairs in (("4bf16Li8", 8), ("fLi4", 4)) for interleaved in (0, 1)}
REGISTERS, WARPS_MOST, WARP, UNIT = 65536, 64, 32, 256


def find_cuobjdump():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "cuobjdump")
    wheels = glob.glob(os.path.join(os.path.dirname(os.path.dirname(os.environ.get("FSDPD_PYTHON", "/nowhere/bin/python"))),
                                    "lib/python3*/site-packages/triton/backends/nvidia/bin/cuobjdump"))
    found = [shutil.which("cuobjdump"), beside, *wheels]
    return next((path for path in found if path and os.access(path, os.X_OK)), None)


def registers_of(report):
    """By kernel, of sm_90."""
    kernels, kernel = {}, None
    with open(report) as file:
        for line in file:
            entry = re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line)
            if entry:
                kernel = entry[1] if entry[2] == "sm_90" else None
            used = re.search(r"Used ([0-9]+) registers", line)
            if used and kernel:
                kernels[kernel] = int(used[1])
    return kernels


def accesses_of(cuobjdump, path):
    """Counts by kernel: loads and stores of 16 bytes, accesses of local memory."""
    environment = dict(os.environ, PATH=os.path.dirname(cuobjdump) + os.pathsep + os.environ["PATH"])
    text = subprocess.run([cuobjdump, "-sass", "-arch", "sm_90", path], env=environment, check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    kernels, counts = {}, None
    for line in text.splitlines():
        function = re.search(r"Function : (\w+)", line)
        if function:
            counts = kernels.setdefault(function[1], {"LDG": 0, "STG": 0, "local": 0})
        access = re.search(r"\b(LDG|STG|LDL|STL)([.\w]*)", line)
        if access and access[1] in ("LDL", "STL"):
            counts["local"] += 1
        elif access and ".128" in access[2]:
            counts[access[1]] += 1
    return kernels


def warps_of(registers, threads):
    """Of one kernel on a multiprocessor, as its registers allow."""
    warps = threads // WARP
    each = -(-registers * WARP // UNIT) * UNIT
    return min(REGISTERS // (each * warps), WARPS_MOST // warps) * warps


def main():
    os.chdir(os.environ.get("builddir", "."))
    cuobjdump = find_cuobjdump()
    if not os.path.exists("kernels/cuda/norm.report") or not cuobjdump:
        print("SKIP: " + ("cuobjdump was not found" if not cuobjdump else "the CUDA backend was not built"))
        return 77
    seen, failures = {}, []
    for file, name, threads, loads, stores, most, warps in HOT:
        if file not in seen:
            path = f"kernels/cuda/{file}"
            seen[file] = (accesses_of(cuobjdump, path + ".o"), registers_of(path + ".report"))
        accesses, registers = seen[file]
        kernels = [kernel for kernel in accesses if name in kernel]
        if len(kernels) != 1 or kernels[0] not in registers:
            failures.append(f"{file}.cu: {len(kernels)} kernels are called {name}")
            continue
        found, used = accesses[kernels[0]], registers[kernels[0]]
        held = warps_of(used, threads)
        said = (f"{name}: {found['LDG']} loads and {found['STG']} stores of 16 bytes, {found['local']} accesses of local "
                f"memory, {used} registers, {held} warps")
        print(said)
        if found["LDG"] < loads or found["STG"] < stores or found["local"] > LOCAL.get(name, 0) or used > most or held < warps:
            failures.append(f"{file}.cu: {said}; wanted: at least {loads} and {stores}, {LOCAL.get(name, 'none')}, at most {most}, at least {warps}")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
