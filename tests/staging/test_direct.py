"""Device tensors that an RDMA adapter reads and writes in place: over an emulated libibverbs and NVIDIA driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.staging import exports

TESTS = Path(__file__).parents[1]
SECONDS = 120


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="dma-bufs are Linux's")
def test_messages_in_place(tmp_path: Path) -> None:
    compilers = [shutil.which(name) for name in ("c++", "cc")]
    if None in compilers:
        pytest.skip("no C and C++ compilers")
    native = TESTS / "native"
    flags = ["-shared", "-fPIC"]
    includes = [f"-I{native}", f"-I{TESTS.parent / 'native/src'}"]
    adapter, driver = tmp_path / "libibverbs.so.1", tmp_path / "libcuda.so.1"
    emulated = str(native / "transports/emulated_verbs.cpp")
    named = f"-Wl,-soname,{adapter.name}"
    subprocess.run([str(compilers[0]), "-std=c++20", *flags, named, *includes, emulated, "-o", adapter], check=True)
    subprocess.run([str(compilers[1]), *flags, str(TESTS / "staging/fake_cuda.c"), "-o", driver], check=True)
    ended = subprocess.run(
        [sys.executable, str(TESTS / "staging/direct_ranks.py"), str(tmp_path)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (ended.stdout, ended.returncode) == ("all is well\n", 0), ended.stderr


def test_missing_driver_is_told() -> None:
    with pytest.raises(OSError, match="memory of mps is not exported"):
        exports.exporter_of("mps")
    with pytest.raises(OSError, match=r"libnothing\.so\.9"):
        exports.CudaExporter("libnothing.so.9")
    strange = exports.CudaExporter("libc.so.6")
    with pytest.raises(OSError, match=r"libc\.so\.6 has no cuMemGetAddressRange_v2"):
        strange.allocation(4096)
    with pytest.raises(OSError, match=r"torch has not loaded libamdhip64\.so"):
        exports.RocmExporter()
