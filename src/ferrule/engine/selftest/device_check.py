"""Check of a device: copies, products, packed weights and the embedded model, against the processor. Some minutes."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ferrule import __version__, fabric
from ferrule.engine.devices import Device, open_device
from ferrule.engine.devices.staged import StagedDevice
from ferrule.engine.options import RankOptions
from ferrule.engine.rank.batch import Batch, Span
from ferrule.engine.rank.captured import Step
from ferrule.engine.rank.sampling.sampler import Choice, Sampler, choose_all
from ferrule.engine.rank.torch_runner import TorchRunner
from ferrule.engine.rank.warm_up import warm_up
from ferrule.engine.selftest.device_report import VERSION, Check, DeviceReport
from ferrule.engine.types import SamplingParams
from ferrule.engine.weights.device_matrix import DeviceMatrix, hold
from ferrule.engine.weights.groups import GroupedMatrix
from ferrule.engine.weights.stack import DeviceStack
from ferrule.engine.weights.vendors.choice import chooser
from ferrule.model import demo_path, read_model
from ferrule.model.gguf.types import LAYOUTS
from ferrule.model.packing import SUPER, GroupLayout
from ferrule.plan import make_plan

_COPY_BYTES = 64 << 20
_ROUNDS = 5
_WIDTH = 1024
_ERRORS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of a product's numbers, as part of the largest: a few units in the last place of the type."""
_PACKED = {
    **{name: LAYOUTS[name] for name in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4", "IQ4_NL")},
    "AWQ": GroupLayout(4, 128, "f16", offsets=True, zero_points=True),
    "NF4": GroupLayout(4, 64, "f32", values="nf4"),
    "FP8": GroupLayout(8, 128, "f32", values="e4m3"),
    "MLX": GroupLayout(4, 64, "bf16", offsets=True),
    "int8 by rows": GroupLayout(8, 0, "bf16", zero=128),
}
_PROMPT = tuple(range(3, 3 + 48))
_ANSWER = 16
_LOGITS = 2e-3
"""By how much logits of the embedded model in float32 may differ, between -20 and 20."""
_LOGITS_OF_CODES = 0.5
"""The same with a quantised cache: rounding brings some numbers to the neighbour of their code."""


_VOCABULARY, _TURNS = 32_000, 50
_CHOSEN = (
    SamplingParams(temperature=0.0),
    SamplingParams(seed=1, temperature=0.7),
    SamplingParams(seed=2, top_k=40, top_p=0.95),
    SamplingParams(seed=3, min_p=0.05, repetition_penalty=1.1, presence_penalty=0.5, logprobs=2),
)


def check_device(name: str, on_check: Callable[[Check], None] = lambda check: None) -> DeviceReport:
    """Try all that the engine does with device ``name``. Raises `ConfigError` where there is none; what goes wrong
    after that is in the report. ``on_check`` is called after each check."""
    device = open_device(name, torch.get_num_threads())
    begin, free = time.perf_counter(), device.memory_free()
    checks: list[Check] = []
    for title, tried in _checks(name, device):
        try:
            check = tried()
        except Exception as error:  # noqa: BLE001 - drivers and torch raise whatever they like; the report says it
            check = Check(title, False, f"{type(error).__name__}: {error}"[:4000])
        checks.append(check)
        on_check(check)
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    seconds = time.perf_counter() - begin
    return DeviceReport(
        VERSION, __version__, str(torch.__version__), system, name, device.title, free, seconds, tuple(checks)
    )


def _checks(name: str, device: Device) -> Iterator[tuple[str, Callable[[], Check]]]:
    yield "copies", lambda: _copies(device)
    yield "order of copies and work", lambda: _order(device)
    if isinstance(device, StagedDevice):
        yield "memory that the host sees", lambda: _in_place(device)
    yield "tokens", lambda: _tokens(device)
    for dtype in _ERRORS:
        title = f"products in {str(dtype).removeprefix('torch.')}"
        yield title, lambda dtype=dtype, title=title: _products(title, device, dtype)  # type: ignore[misc]
    for kind, layout in _PACKED.items():
        title = f"packed weights: {kind}"
        yield title, lambda layout=layout, title=title: _packed(title, device, layout)  # type: ignore[misc]
    yield "packed experts", lambda: _experts(device)
    for weights in (None, "int8", "int4"):
        title = f"the embedded model{f', {weights}' if weights else ''}"
        yield title, lambda weights=weights, title=title: _model(title, name, weights)  # type: ignore[misc]
    for kv_cache in ("int8", "int4"):
        title = f"the embedded model, {kv_cache} cache"
        yield title, lambda kv_cache=kv_cache, title=title: _model(title, name, None, kv_cache)  # type: ignore[misc]
    for weights in (None, "int4"):
        title = f"captured steps{f', {weights}' if weights else ''}"
        yield title, lambda weights=weights, title=title: _graphs(title, name, weights)  # type: ignore[misc]


def _copies(device: Device) -> Check:
    values = torch.randint(0, 256, (_COPY_BYTES,), dtype=torch.uint8)
    there = device.upload(values)
    same = torch.equal(device.download(there), values)
    up = _seconds(device, lambda: device.upload(values))
    down = _seconds(device, lambda: device.download(there))
    rates = {"to_device_gb_s": _COPY_BYTES / up / 1e9, "to_host_gb_s": _COPY_BYTES / down / 1e9}
    return Check("copies", same, f"{_COPY_BYTES >> 20} MiB there and back", rates)


def _order(device: Device) -> Check:
    wrong = 0
    for turn in range(200):
        values = torch.full((1000 + turn,), float(turn))
        wrong += int((device.download(device.upload(values) * 2 + 1) != 2 * turn + 1).sum())
    return Check("order of copies and work", wrong == 0, f"200 small copies and operations, {wrong} numbers wrong")


def _in_place(device: StagedDevice) -> Check:
    wrong, there = 0, device.upload(torch.arange(1000.0))
    for turn in range(200):
        with device.visible():
            values = there + turn
        if (seen := device.host_view(values)) is None:
            return Check("memory that the host sees", True, "none that is used in place: tensors are copied")
        device.record().synchronize()
        wrong += int((seen != torch.arange(1000.0) + turn).sum())
        seen += 1
        wrong += int((device.download(values * 2) != 2 * (torch.arange(1000.0) + turn + 1)).sum())
    return Check("memory that the host sees", wrong == 0, f"used in place 200 times, {wrong} numbers wrong")


def _tokens(device: Device) -> Check:
    """Rounding may choose the neighbour where a random number falls on the border of two tokens."""
    logits = 4 * _random(len(_CHOSEN), _VOCABULARY)
    there, seen, wrong = device.upload(logits), list(range(100)), 0
    on_device, here = [Sampler(params) for params in _CHOSEN], [Sampler(params) for params in _CHOSEN]

    def choose() -> list[Choice]:
        return choose_all(device, there, [(sampler, seen, 50) for sampler in on_device])

    for _ in range(_TURNS):
        expected = [sampler.choose(row, seen, 50) for sampler, row in zip(here, logits, strict=True)]
        wrong += sum(one.token != other.token for one, other in zip(choose(), expected, strict=True))
    detail = f"{len(_CHOSEN) * _TURNS} of {_VOCABULARY:,}, {wrong} others than on the processor"
    return Check("tokens", wrong <= 1, detail, {"choose_ms": _seconds(device, choose) * 1e3})


def _products(title: str, device: Device, dtype: torch.dtype) -> Check:
    weight, many = _random(4 * _WIDTH, _WIDTH).to(dtype), _random(512, _WIDTH).to(dtype)
    there, rows = device.upload(weight), device.upload(many)
    error = _error(device.download((rows @ there.T).float()), many.float() @ weight.float().T)
    one = rows[:1]
    numbers = {
        "one_row_gb_s": weight.nbytes / _seconds(device, lambda: one @ there.T) / 1e9,
        "many_rows_tflop_s": 2 * many.shape[0] * weight.numel() / _seconds(device, lambda: rows @ there.T) / 1e12,
        "error": error,
    }
    return Check(title, error < _ERRORS[dtype], f"{tuple(rows.shape)} times {tuple(weight.shape)}", numbers)


def _packed(title: str, device: Device, layout: GroupLayout) -> Check:
    groups = random_groups(layout, 2 * _WIDTH, _WIDTH)
    matrix: DeviceMatrix = hold(groups, torch.bfloat16, device.torch_device)
    whole = torch.from_numpy(groups.numbers())
    rows = _random(5, _WIDTH)
    error = _error(device.download(matrix.multiply(device.upload(rows))), rows @ whole.T)
    one = device.upload(rows[:1].bfloat16())
    numbers = {"one_row_gb_s": matrix.bytes / _seconds(device, lambda: matrix.multiply(one)) / 1e9, "error": error}
    choice = chooser().choice(matrix)
    taken = matrix.kernel if choice.vendor is None else choice.vendor.name
    for trial in choice.trials[1:]:
        numbers[f"{trial.kernel.replace(' ', '_')}_one_row_gb_s"] = matrix.bytes / trial.few / 1e9
    failed = "".join(f"; {trial.kernel}: {trial.why}" for trial in choice.trials if trial.why)
    detail = f"5 rows times {tuple(matrix.shape)}{failed}"[:4000]
    return Check(title, error < _ERRORS[torch.float32], detail, numbers, taken)


def _experts(device: Device) -> Check:
    """Few rows, and more than there are experts: they take different ways."""
    experts, outputs, layout = 16, _WIDTH // 2, LAYOUTS["Q4_K"]
    groups = random_groups(layout, experts * outputs, _WIDTH)
    stack = DeviceStack(layout, hold(groups, torch.float32, device.torch_device).packed.held, experts)
    whole = torch.from_numpy(groups.numbers()).view(experts, outputs, _WIDTH)
    error, numbers = 0.0, {}
    for count in (8, 256):
        rows = _random(count, _WIDTH)
        chosen = torch.randint(0, experts, (count,), generator=torch.Generator().manual_seed(count)).sort().values
        ends = torch.searchsorted(chosen, torch.arange(experts), right=True).int()
        given = device.upload(rows), device.upload(chosen), device.upload(ends)
        expected = torch.bmm(whole[chosen], rows.unsqueeze(-1)).squeeze(-1)
        error = max(error, _error(device.download(stack.multiply(*given)), expected))
        lower = device.upload(rows.bfloat16()), *given[1:]
        numbers[f"{count}_rows_us"] = 1e6 * _seconds(device, lambda lower=lower: stack.multiply(*lower))  # type: ignore[misc]
    detail = f"8 and 256 rows times {tuple(stack.shape)}"
    return Check("packed experts", error < _ERRORS[torch.float32], detail, numbers | {"error": error})


def _model(title: str, name: str, weights: str | None, kv_cache: str = "auto") -> Check:
    found, seconds, _ = _logits(name, weights, kv_cache=kv_cache)
    expected, _, _ = _logits("cpu", weights, kv_cache=kv_cache)
    most = _LOGITS if kv_cache == "auto" else _LOGITS_OF_CODES
    error = float((found - expected).abs().max())
    same = bool((found.argmax(-1) == expected.argmax(-1)).all())
    detail = f"{len(found)} tokens through transformers' modules in float32, {'the same' if same else 'others'} chosen"
    return Check(title, error < most, detail, {"one_stream_tokens_s": 1 / seconds, "error": error})


def _graphs(title: str, name: str, weights: str | None) -> Check:
    """Steps that are captured, and the same without."""
    found, seconds, steps = _logits(name, weights, captured=True)
    expected, plain, _ = _logits(name, weights)
    error = float((found - expected).abs().max())
    refused = next((step.script.refused for step in steps if step.script.refused), "")
    launches = max((step.script.launches for step in steps), default=0)
    if not steps:
        detail = "not captured: this kind of device has no graphs here"
    else:
        detail = f"not captured: {refused}" if refused else f"{len(found)} tokens, {launches} launch in each step"
    numbers = {"one_stream_tokens_s": 1 / seconds, "without_tokens_s": 1 / plain, "error": error}
    return Check(title, error < _LOGITS and not refused, detail[:4000], numbers)


def _logits(
    name: str, weights: str | None, *, captured: bool = False, kv_cache: str = "auto"
) -> tuple[Tensor, float, list[Step]]:
    """Of the last token of a prompt and of some more, the median seconds of one of those, and steps ``captured``."""
    plan = make_plan(read_model(str(demo_path())))
    options = RankOptions(str(demo_path()), "float32", plan, 1, 256, 1, 256, (), weights=weights, kv_cache=kv_cache)
    times, found = [], []
    with fabric.init() as world:
        runner = TorchRunner(options, world, world, open_device(name, torch.get_num_threads()))
        if captured:
            warm_up(runner)
        batch, seen = Batch((Span(1, 0, len(_PROMPT), True),), _PROMPT), len(_PROMPT)
        for turn in range(_ANSWER):
            begin = time.perf_counter()
            logits = runner.run(batch)
            assert logits is not None
            found.append(runner.device.download(logits)[0])
            times.append(time.perf_counter() - begin)
            batch, seen = Batch((Span(1, seen, 1, True),), (5 + turn,)), seen + 1
        steps = [] if runner.captured is None else list(runner.captured.steps.values())
    return torch.stack(found), statistics.median(times[1:]), steps


def random_groups(layout: GroupLayout, rows: int, columns: int) -> GroupedMatrix:
    """A matrix of this layout, of random codes and scales."""
    random = np.random.default_rng(1)
    shape, wide = (rows, columns // (layout.group or columns)), (rows, columns // SUPER)
    codes = random.integers(0, 1 << layout.bits, (rows, columns), dtype=np.uint8)
    if layout.values in ("e4m3", "e5m2"):
        codes &= np.uint8(0x77)  # no NaN, and nothing infinite
    if layout.nested:
        times, supers = SUPER // layout.group, np.exp2(random.integers(-12, -8, wide)).astype(np.float32)
        scales = random.integers(1, 64, shape).astype(np.float32) * np.repeat(supers, times, axis=1)
        offsets, more = (-scales, -supers) if layout.offsets else (None, None)
        return GroupedMatrix(layout, codes, scales, offsets, None, supers, more)
    scales = np.exp2(random.integers(-10, -6, shape)).astype(np.float32)
    offsets = -scales * random.integers(0, 16, shape).astype(np.float32) if layout.offsets else None
    return GroupedMatrix(layout, codes, scales, offsets)


def _random(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


def _error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as part of the largest number; infinite where something is no number."""
    difference = float((found - expected).abs().max() / expected.abs().max())
    return difference if difference == difference else float("inf")


def _seconds(device: Device, work: Callable[[], object]) -> float:
    """The least of some rounds, until the device is done."""
    best = float("inf")
    for _ in range(_ROUNDS):
        device.synchronize()
        begin = time.perf_counter()
        work()
        device.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best
