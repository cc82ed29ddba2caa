"""What the kernels take, as their library tells it: structures, and a check of every call before native code sees it.

kernels.c writes down each argument once, with its type and shape; its structures and the layout that is read here come
from that one list. So a name cannot stand for another's place, and no array is shorter than the kernels think.
"""

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from mqcast.errors import KernelError

LANES = 8  # the widths of heads, contexts and codes are multiples of this
LARGEST_SIZE = 2**28  # two of them multiplied, in bytes, are far from what 64 bits hold
OF_TYPE = {"byte": torch.bool, "num": torch.int64, "float": torch.float32, "double": torch.float64}
ALWAYS, FORTH, BACK, FEEDBACK = "always", "forth", "back", "feedback"


class LayoutError(Exception):
    """The library tells of arguments that are not understood here."""


class _Told(ctypes.Structure):
    """As `Argument` in kernels.c."""

    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("of", "name", "when", "type", "shape")),
        ("offset", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Array:
    name: str
    when: str  # always, forth, back, … : in which calls it is there
    dtype: torch.dtype
    shape: tuple[str, ...]  # names of sizes, or numbers
    is_written: bool


class Kind:
    """The arguments of one step there and back: sizes, then arrays."""

    def __init__(self, name: str, told: list[_Told], size: int):
        self.name = name
        self.sizes = tuple(one.name.decode() for one in told if not one.type)
        self.arrays = tuple(_array(one) for one in told if one.type)
        fields = [(name, ctypes.c_int64) for name in self.sizes] + [(x.name, ctypes.c_void_p) for x in self.arrays]
        self.structure = type(name, (ctypes.Structure,), {"_fields_": fields})
        here = [(field, getattr(self.structure, field).offset) for field, _ in fields]
        if here != [(one.name.decode(), one.offset) for one in told] or ctypes.sizeof(self.structure) != size:
            raise LayoutError(f"the arguments of {name} lie elsewhere than Python expects")
        if not {part for x in self.arrays for part in x.shape} <= extents(dict.fromkeys(self.sizes, LANES)).keys():
            raise LayoutError(f"the arguments of {name} have unknown shapes")

    @cache  # noqa: B019 (there are three kinds, for as long as the process runs)
    def needed(self, forth: bool, feedback: bool, judged: bool) -> tuple[Array, ...]:
        """The arrays of such a call: all of them have to be there, and no others."""
        when = {ALWAYS, FORTH if forth else BACK, *([] if forth else ["judged" if judged else "given"])}
        when |= ({FEEDBACK} if forth else {FEEDBACK, "feedback_back"}) if feedback else set()
        return tuple(x for x in self.arrays if x.when in when)

    def arguments(self, function: str, sizes: dict[str, int], tensors: dict[str, Tensor]) -> ctypes.Structure:
        """The structure for a call, once everything about it is known to be right."""
        if sizes.keys() != set(self.sizes):
            raise KernelError(f"{function} takes the sizes {', '.join(self.sizes)}; it was given {', '.join(sizes)}")
        for problem in _wrong_sizes(self.name, sizes):
            raise KernelError(f"{function}: {problem}")
        needed = self.needed(function.endswith("forward"), bool(sizes.get(FEEDBACK)), "loss" in tensors)
        if len(needed) != len(tensors) or any(x.name not in tensors for x in needed):
            odd = tensors.keys() ^ {x.name for x in needed}
            raise KernelError(f"{function}: {', '.join(sorted(odd))} is missing, or should not be there")
        extent, places = extents(sizes), []
        for array in needed:
            tensor = tensors[array.name]
            shape = tuple([extent[part] for part in array.shape])
            if problem := _misfit(tensor, array, shape):
                raise KernelError(f"{function}: {array.name} {problem}")
            places.append((start := tensor.data_ptr(), start + tensor.nbytes, array.is_written, array.name))
        if overlap := _overlap(places):
            raise KernelError(f"{function}: {overlap} share memory, and one of them is written")
        return self.structure(**sizes, **{name: start for start, _, _, name in places})


def kinds_of(library: ctypes.CDLL) -> dict[str, Kind]:
    """By name, from what the library tells of itself."""
    try:
        layout, length = library.kernels_layout, library.kernels_layout_length
    except AttributeError:
        raise LayoutError("it does not tell its arguments") from None
    layout.restype, length.restype = ctypes.POINTER(_Told), ctypes.c_int64
    found: dict[str, Kind] = {}
    told: list[_Told] = []
    if not (first := layout()):
        raise LayoutError("it does not tell its arguments")
    for one in first[: length()]:
        if one.name:
            told.append(one)
        else:  # after the arguments of each kind, its size
            name = one.of.decode()
            found[name], told = Kind(name, told, one.offset), []
    if found.keys() != {"Stack", "Align", "Cells"}:
        raise LayoutError("it has other steps than those that are called")
    return found


def _array(told: _Told) -> Array:
    constness, _, kind = f" {told.type.decode()}".rpartition(" ")
    if kind not in OF_TYPE:
        raise LayoutError(f"numbers of type {kind} are unknown")
    dims = tuple(told.shape.decode().split())
    return Array(told.name.decode(), told.when.decode(), OF_TYPE[kind], dims, is_written="const" not in constness)


def extents(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes, and what follows from them, by the names that shapes in kernels.c have."""
    found = {"1": 1, "2": 2, **sizes}
    if "horizon" in sizes:
        found["calendars"] = 1 if sizes["shared_ahead"] else sizes["batch"]
        found["targets"] = sizes["made"] + sizes["horizon"] - 1
        found.setdefault("wanted", sizes["made"] - sizes["horizon"] + 1)
    if "levels" in sizes:
        found["read"] = sizes["paces"] * sizes["heads"]
        found["outputs"] = -(-sizes["levels"] // LANES) * LANES
        found["maps"] = sizes["heads"] + (2 * sizes["heads"] + 2 * sizes["channels"] if sizes[FEEDBACK] else 0)
    return found


def _wrong_sizes(kind: str, sizes: dict[str, int]) -> Iterator[str]:
    for name, value in sizes.items():
        least, most = (0, 1) if name in ("shared_ahead", FEEDBACK) else (int(name != "lookback"), LARGEST_SIZE)
        if not least <= value <= most:
            yield f"{name} is {value}; it must be from {least} to {most}"
        if name in ("heads", "channels") and value % LANES:
            yield f"{name} is {value}; it must be a multiple of {LANES}"
    if kind == "Align":
        rises = ("1 ≤ wanted ≤ made ≤ steps", (1, sizes["wanted"], sizes["made"], sizes["steps"]))
        yield from _unless_rising(*rises)
        yield from _unless_rising("made < wanted + horizon", (sizes["made"] + 1, sizes["wanted"] + sizes["horizon"]))
        yield from _unless_rising("lookback < steps", (sizes["lookback"] + 1, sizes["steps"]))
    if kind == "Cells":
        wanted = sizes["made"] - sizes["horizon"] + 1
        yield from _unless_rising("1 ≤ wanted ≤ known ≤ made", (1, wanted, sizes["known"], sizes["made"]))


def _unless_rising(rule: str, values: tuple[int, ...]) -> Iterator[str]:
    if list(values) != sorted(values):
        yield f"the sizes must have {rule}; they are {', '.join(map(str, values))}"


def _misfit(tensor: Tensor, array: Array, shape: tuple[int, ...]) -> str | None:
    """What about a tensor does not fit its place, if anything does not."""
    if tensor.dtype != array.dtype:
        return f"is of {tensor.dtype}, not of {array.dtype}"
    if tensor.shape != shape:
        return f"has the shape {tuple(tensor.shape)}, not {shape}"
    if not tensor.is_cpu or tensor.layout != torch.strided or not tensor.is_contiguous() or tensor.is_neg():
        return "is not one plain run of memory of the processor"
    if not (start := tensor.data_ptr()) or start % tensor.element_size():
        return f"begins at an address that is no multiple of {tensor.element_size()}"
    return None


def _overlap(places: Iterable[tuple[int, int, bool, str]]) -> str | None:
    """The names of two arrays that share memory, if one of them is written to."""
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
