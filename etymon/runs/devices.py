"""Devices to train on: what makers publish of them, what a user says, and this machine as it is measured."""

from __future__ import annotations

import re
from dataclasses import dataclass

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.nn.footprint import available_memory
from etymon.nn.precision import DTYPES, Precision
from etymon.training.speed import matmul_peak

GIGA, TERA = 1e9, 1e12
USABLE = 0.92
"""Of a GPU's memory, for a run's tensors: the rest is left to the driver, kernels, buffers of communication
and gaps. Assumed, not measured."""
FASTER = 1.2
"""How many times as fast half precision has to be here to be worth its rounding."""


@dataclass(frozen=True)
class Device:
    """One device, or one process of a processor."""

    name: str
    memory: float
    """Bytes that a run may take."""
    peaks: dict[Precision, float]
    """Operations a second of large matrix products; a precision that is not there cannot be computed in."""
    watts: float | None
    """The most that it draws, where that is published."""
    source: str

    @property
    def is_processor(self) -> bool:
        return self.name == "cpu"

    @property
    def best_precision(self) -> Precision:
        """bfloat16 where there is one, since it needs no loss scaling, if it is clearly faster."""
        halves: tuple[Precision, ...] = ("bf16", "fp16")
        for name in halves:
            if self.peaks.get(name, 0.0) >= FASTER * self.peaks["float32"]:
                return name
        return "float32"


# Gigabytes, teraflops in float32 (without TensorFloat-32, which PyTorch leaves off), bfloat16 and float16
# (dense products, added up in float32), watts. None: the device does not compute in it, or nobody says it.
# A100, H100, H200 and V100 are those on SXM boards: the cards for PCIe draw less and compute slower.
# docs/planning.md says where each figure comes from, and which of them follow from others.
PUBLISHED: dict[str, tuple[float, float, float | None, float, float | None]] = {
    "A100-40": (40, 19.5, 312, 312, 400),
    "A100-80": (80, 19.5, 312, 312, 400),
    "H100": (80, 67, 989, 989, 700),
    "H200": (141, 67, 989, 989, 700),
    "V100-16": (16, 15.7, None, 125, 300),
    "V100-32": (32, 15.7, None, 125, 300),
    "T4": (16, 8.1, None, 65, 70),
    "L4": (24, 30.3, 121, 121, 72),
    "L40S": (48, 91.6, 362, 362, 350),
    "A10": (24, 31.2, 125, 125, 150),
    "A6000": (48, 38.7, 155, 155, 300),
    # Half of what they do when sums are kept in float16, unlike the cards above.
    "RTX3090": (24, 35.6, 71, 71, 350),
    "RTX4090": (24, 82.6, 165, 165, 450),
    "M1": (16, 2.6, 2.6, 2.6, None),
    "M1-Max": (64, 10.4, 10.4, 10.4, None),
    "M2": (24, 3.6, 3.6, 3.6, None),
    "M2-Ultra": (192, 27.2, 27.2, 27.2, None),
}
OWN = re.compile(r"(\d+(?:\.\d+)?)GB@(\d+(?:\.\d+)?)TFLOPS", re.IGNORECASE)
COUNTED = re.compile(r"(?:(\d+)x)?(.+)", re.IGNORECASE)


def read_devices(text: str) -> tuple[int, Device]:
    """How many of which device: `8xA100-80`, `T4`, `cpu`, or one of your own, `2x24GB@71TFLOPS`."""
    match = COUNTED.fullmatch(text.strip().replace(" ", ""))
    if match is None:
        raise EtymonError("there are no devices without a name: write 8xA100-80, 2x24GB@71TFLOPS or cpu")
    count, name = int(match[1] or 1), match[2]
    if not 1 <= count <= 1_000_000:
        raise EtymonError(f"--devices {text}: give at least one device, and at most a million")
    if name.lower() == "cpu":
        return count, this_processor(count)
    if described := OWN.fullmatch(name):
        memory, peak = float(described[1]) * GIGA, float(described[2]) * TERA
        if not memory or not peak:
            raise EtymonError(f"--devices {text}: a device has some memory and some speed")
        peaks: dict[Precision, float] = dict.fromkeys(("float32", "bf16", "fp16"), peak)
        return count, Device(name, USABLE * memory, peaks, None, "as given")
    names = {each.lower().replace("-", ""): each for each in PUBLISHED}
    published_name = names.get(name.lower().replace("-", ""))
    if published_name is None:
        raise EtymonError(
            f"there is no device {name!r} in the table: {did_you_mean(name, [*PUBLISHED, 'cpu'])}; or say "
            "its memory and speed, as in 2x24GB@71TFLOPS"
        )
    memory, float32, bf16, fp16, watts = PUBLISHED[published_name]
    given = {"float32": float32, "bf16": bf16, "fp16": fp16}
    return count, Device(
        published_name,
        USABLE * memory * GIGA,
        {precision: peak * TERA for precision, peak in given.items() if peak},  # type: ignore[misc]
        watts,
        "published",
    )


def this_processor(processes: int = 1) -> Device:
    """This machine's processor as it is now, or an equal share of it for each of some processes."""
    # Not float16, in which processors do not train.
    names: tuple[Precision, ...] = ("float32", "bf16")
    peaks = {name: matmul_peak(dtype=DTYPES[name]) for name in names}
    return Device(
        "cpu",
        available_memory() / processes,
        {name: peak / processes for name, peak in peaks.items()},
        None,
        "measured here",
    )
