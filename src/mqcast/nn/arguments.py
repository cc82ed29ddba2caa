"""The kernels' arguments, as their library describes them, and a check of every call before native code runs.

kernels.c lists each argument once, with its type and shape. Its structures and the layout that is read here both come
from that list, so a name cannot stand for another's place and no array is shorter than the kernels assume. That makes
the `ctypes` call as safe as a registered torch operator, whose schema would have to repeat some 60 names by hand; the
operators would add nothing else, since the kernels are bypassed wherever torch traces or compiles.
"""

import ctypes
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from mqcast.errors import KernelError

LANES = 8  # widths of heads, contexts and the encoder are multiples of this
LARGEST_SIZE = 2**28  # the product of two, in bytes, is far below 2^63
DTYPES = {"byte": torch.bool, "num": torch.int64, "float": torch.float32, "double": torch.float64}
SWITCHES = ("shared_ahead", "feedback", "residual", "coded", "preceded")  # sizes that are 0 or 1


class LayoutError(Exception):
    """The library describes arguments that this version does not know."""


class _Description(ctypes.Structure):
    """`Argument` in kernels.c."""

    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("of", "name", "when", "type", "shape")),
        ("offset", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Array:
    name: str
    when: frozenset[str]  # what calls that take it have: forward or backward, feedback, …; all have "always"
    dtype: torch.dtype
    shape: tuple[str, ...]  # names of sizes, or numbers
    is_written: bool


class Signature:
    """The arguments of one step's forward and backward calls: sizes, then arrays."""

    def __init__(self, name: str, described: list[_Description], size: int):
        self.name = name
        self.sizes = tuple(one.name.decode() for one in described if not one.type)
        self.arrays = tuple(_array(one) for one in described if one.type)
        fields = [(name, ctypes.c_int64) for name in self.sizes] + [(x.name, ctypes.c_void_p) for x in self.arrays]
        self.structure = type(name, (ctypes.Structure,), {"_fields_": fields})
        here = [(field, getattr(self.structure, field).offset) for field, _ in fields]
        if here != [(one.name.decode(), one.offset) for one in described] or ctypes.sizeof(self.structure) != size:
            raise LayoutError(f"the arguments of {name} are not where Python expects them")
        if not {part for x in self.arrays for part in x.shape} <= extents(dict.fromkeys(self.sizes, LANES)).keys():
            raise LayoutError(f"the arguments of {name} have unknown shapes")

    @cache  # noqa: B019 (three signatures live as long as the process)
    def needed(self, forward: bool, switches: frozenset[str], with_loss: bool) -> tuple[Array, ...]:
        """Exactly the arrays that such a call takes."""
        ways = {"forward"} if forward else {"backward", "loss" if with_loss else "gradient"}
        return tuple(x for x in self.arrays if x.when <= {"always", *ways, *switches})

    @lru_cache(maxsize=256)  # noqa: B019
    def expected(self, function: str, sizes: tuple[tuple[str, int], ...], with_loss: bool) -> dict[str, "Place"]:
        """The places of a call's arrays, after its sizes have been checked."""
        given = dict(sizes)
        if given.keys() != set(self.sizes):
            raise KernelError(f"{function} takes the sizes {', '.join(self.sizes)}; it was given {', '.join(given)}")
        for problem in _wrong_sizes(self.name, given):
            raise KernelError(f"{function}: {problem}")
        switches, extent = frozenset(name for name in SWITCHES if given.get(name)), extents(given)
        needed = self.needed(function.endswith("forward"), switches, with_loss)
        return {x.name: Place(x.dtype, tuple(extent[part] for part in x.shape), x.is_written) for x in needed}

    def arguments(self, function: str, sizes: dict[str, int], tensors: dict[str, Tensor]) -> ctypes.Structure:
        """The structure for a call, after everything about it has been checked."""
        expected = self.expected(function, tuple(sizes.items()), "loss" in tensors)
        if expected.keys() != tensors.keys():
            raise KernelError(f"{function}: {', '.join(sorted(tensors.keys() ^ expected))} is missing or unexpected")
        starts, used = {}, []
        for name, place in expected.items():
            tensor = tensors[name]
            if problem := _misfit(tensor, place):
                raise KernelError(f"{function}: {name} {problem}")
            start = starts[name] = tensor.data_ptr()
            used.append((start, start + place.num_bytes, place.is_written, name))
        if overlap := _overlap(used):
            raise KernelError(f"{function}: {overlap} share memory, and one of them is written")
        return self.structure(**sizes, **starts)


class Place:
    """What an array of a call has to be like."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], is_written: bool):
        self.dtype, self.shape, self.is_written = dtype, shape, is_written
        self.num_bytes = dtype.itemsize * math.prod(shape)


def signatures_of(library: ctypes.CDLL) -> dict[str, Signature]:
    """The signatures of a library's steps, by name."""
    try:
        layout, length = library.kernels_layout, library.kernels_layout_length
    except AttributeError:
        raise LayoutError("it does not describe its arguments") from None
    layout.restype, length.restype = ctypes.POINTER(_Description), ctypes.c_int64
    signatures: dict[str, Signature] = {}
    described: list[_Description] = []
    if not (first := layout()):
        raise LayoutError("it does not describe its arguments")
    for one in first[: length()]:
        if one.name:
            described.append(one)
        else:  # the size of the structure follows its arguments
            name = one.of.decode()
            signatures[name], described = Signature(name, described, one.offset), []
    if signatures.keys() != {"Stack", "Align", "Decoder"}:
        raise LayoutError("it has unknown steps")
    return signatures


def _array(described: _Description) -> Array:
    constness, _, kind = f" {described.type.decode()}".rpartition(" ")
    if kind not in DTYPES:
        raise LayoutError(f"the type {kind} is unknown")
    shape = tuple(described.shape.decode().split())
    name, when = described.name.decode(), frozenset(described.when.decode().split())
    return Array(name, when, DTYPES[kind], shape, is_written="const" not in constness)


def extents(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes and what follows from them, by the names that shapes in kernels.c use."""
    extent = {"1": 1, "2": 2, **sizes}
    if "horizon" in sizes:
        extent["calendars"] = 1 if sizes["shared_ahead"] else sizes["batch"]
        extent["targets"] = sizes["made"] + sizes["horizon"] - 1
        extent.setdefault("wanted", sizes["made"] - sizes["horizon"] + 1)
    if "levels" in sizes:
        extent["read"] = sizes["paces"] * sizes["heads"]
        extent["outputs"] = -(-sizes["levels"] // LANES) * LANES
        of_feedback = 2 * sizes["heads"] + sizes["channels"] * (1 + sizes["residual"])
        extent["maps"] = sizes["heads"] + sizes["feedback"] * of_feedback
    return extent


def _wrong_sizes(step: str, sizes: dict[str, int]) -> Iterator[str]:
    for name, value in sizes.items():
        low, high = (0, 1) if name in SWITCHES else (int(name not in ("lookback", "precedents")), LARGEST_SIZE)
        if not low <= value <= high:
            yield f"{name} is {value}; it must be from {low} to {high}"
        if name in ("heads", "channels") and value % LANES:
            yield f"{name} is {value}; it must be a multiple of {LANES}"
    if step == "Align":
        rises = ("1 ≤ wanted ≤ made ≤ steps", (1, sizes["wanted"], sizes["made"], sizes["steps"]))
        yield from _unless_rising(*rises)
        yield from _unless_rising("made < wanted + horizon", (sizes["made"] + 1, sizes["wanted"] + sizes["horizon"]))
        yield from _unless_rising("lookback < steps", (sizes["lookback"] + 1, sizes["steps"]))
    if step == "Decoder":
        wanted = sizes["made"] - sizes["horizon"] + 1
        yield from _unless_rising("1 ≤ wanted ≤ known ≤ made", (1, wanted, sizes["known"], sizes["made"]))


def _unless_rising(rule: str, values: tuple[int, ...]) -> Iterator[str]:
    if list(values) != sorted(values):
        yield f"the sizes must have {rule}; they are {', '.join(map(str, values))}"


def _misfit(tensor: Tensor, place: Place) -> str | None:
    """Why a tensor does not fit its place; None if it does."""
    if tensor.dtype != place.dtype:
        return f"is of {tensor.dtype}, not of {place.dtype}"
    if tensor.shape != place.shape:
        return f"has the shape {tuple(tensor.shape)}, not {place.shape}"
    if not tensor.is_cpu or tensor.layout != torch.strided or not tensor.is_contiguous() or tensor.is_neg():
        return "is not contiguous CPU memory"
    if not (start := tensor.data_ptr()) or start % place.dtype.itemsize:
        return f"starts at an address that is not a multiple of {place.dtype.itemsize}"
    return None


def _overlap(places: Iterable[tuple[int, int, bool, str]]) -> str | None:
    """Two arrays that share memory although one of them is written; None if there are none."""
    any_end, any_name, written_end, written_name = 0, "", 0, ""
    for start, end, is_written, name in sorted(places):
        if start < written_end:
            return f"{written_name} and {name}"
        if is_written and start < any_end:
            return f"{any_name} and {name}"
        if end > any_end:
            any_end, any_name = end, name
        if is_written and end > written_end:
            written_end, written_name = end, name
    return None
