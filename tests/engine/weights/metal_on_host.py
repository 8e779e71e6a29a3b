"""`torch.mps.compile_shader` without a Mac: the text, which is nearly C++14, is compiled as that and run here.

``metal/metal_stdlib`` is what the text includes. Kernels take arguments as torch's do: tensors as buffers, whole
numbers of Python as 64 bits; ``threads`` are counted in all, not by groups.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent / "metal"
COMPILER = shutil.which("g++") or shutil.which("clang++")
_PLACES = ["threadgroup_position_in_grid", "simdgroup_index_in_threadgroup", "thread_index_in_simdgroup"]
"""What a kernel asks for behind its arguments, in the order in which ``launch`` gives it."""


class Library:
    def __init__(self, source: str, directory: Path) -> None:
        self._names = re.findall(r"^PRODUCT\((\w+),", source, re.MULTILINE)
        assert re.findall(r"\[\[(\w+)\]\]", source) == _PLACES
        text = source + "".join(
            f'extern "C" bool run_{name}(void** buffers, const size_t* sizes, size_t count, const size_t* threads,'
            f" const size_t* group) {{ return on_host::launch({name}, buffers, sizes, count, threads, group); }}\n"
            for name in self._names
        )
        code, made = directory / "kernel.cpp", directory / "kernel.so"
        code.write_text(text)
        assert COMPILER is not None
        flags = ["-std=c++14", "-O1", "-fno-strict-aliasing", "-shared", "-fPIC", "-I", str(HERE)]
        warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-attributes", "-Wno-unused-parameter"]
        done = subprocess.run(
            [COMPILER, *flags, *warnings, code, "-o", made], capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise SyntaxError(done.stderr[:3000])  # as torch does
        self._library = ctypes.CDLL(str(made))
        self.launches: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in self._names:
            raise AttributeError(name)
        function = getattr(self._library, f"run_{name}")
        function.restype = ctypes.c_bool

        def kernel(*arguments: Any, threads: tuple[int, int], group_size: tuple[int, int]) -> None:
            self.launches.append(name)
            whole = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in arguments]
            assert all(each.is_contiguous() and each.device.type == "cpu" for each in whole)
            buffers = (ctypes.c_void_p * len(whole))(*(each.data_ptr() for each in whole))
            sizes = (ctypes.c_size_t * len(whole))(*(each.nbytes for each in whole))
            of_two = ctypes.c_size_t * 2
            assert function(buffers, sizes, ctypes.c_size_t(len(whole)), of_two(*threads), of_two(*group_size)), (
                "lanes did not come to a sum together, or what was launched is not what the kernel takes"
            )

        return kernel


def shader_compiler(directory: Path) -> Callable[[str], Library]:
    """In the place of `torch.mps.compile_shader`; ``directory``: for what is made."""

    def compile_shader(source: str) -> Library:
        place = directory / str(len(list(directory.iterdir())))
        place.mkdir()
        return Library(source, place)

    return compile_shader
