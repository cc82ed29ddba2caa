"""Nothing reaches the compiled kernels that they could not take: every call is checked before native code sees it."""

import pytest
import torch
from torch import Tensor

from mqcast.errors import KernelError
from mqcast.nn import kernels
from mqcast.nn.arguments import Signature

pytestmark = pytest.mark.skipif(kernels.status() != "compiled", reason=kernels.status())
SIZES = {"batch": 2, "steps": 20, "made": 12, "wanted": 9, "horizon": 4, "heads": 8, "channels": 16, "lookback": 5}
SHAPES = {"now": (2, 12, 8), "ahead": (1, 15, 8), "key": (2, 20, 8), "value": (2, 20, 16)}


def align() -> Signature:
    loaded = kernels._kernels()[0]
    assert loaded is not None
    return loaded.signatures["Align"]


def arrays() -> dict[str, Tensor]:
    """What `align_forward` takes of these sizes."""
    made = {"cells": torch.empty(2, 12, 4, 16), "norm": torch.empty(2, 12, 4)}
    return {name: torch.randn(shape) for name, shape in SHAPES.items()} | made | {"begun": torch.ones(2, 20) > 0}


def misaligned(x: Tensor, by: int = 1) -> Tensor:
    """The same numbers, from an address that no number of theirs begins at."""
    room = torch.empty(x.nbytes + by, dtype=torch.uint8)
    room[by:] = x.contiguous().view(-1).view(torch.uint8)
    return torch.frombuffer(room.numpy().data, dtype=x.dtype, count=x.numel(), offset=by).view(x.shape)


def in_a_larger_one(x: Tensor) -> Tensor:
    """The same numbers, every other one along each axis of a larger tensor that is not to be read."""
    room = torch.full([2 * n + 1 for n in x.shape], torch.nan if x.is_floating_point() else 1).to(x.dtype)
    inner = room[tuple(slice(1, None, 2) for _ in x.shape)]
    inner.copy_(x)
    return inner


WRONG_ARRAYS = {
    "too short": ("key", lambda x: x[:, :-1].contiguous(), "has the shape"),
    "an axis too many": ("key", lambda x: x[None], "has the shape"),
    "other axes": ("value", lambda x: x.mT.contiguous(), "has the shape"),
    "not shared": ("ahead", lambda x: x.expand(2, -1, -1).contiguous(), "has the shape"),
    "double": ("now", lambda x: x.double(), "is of torch.float64"),
    "half": ("now", lambda x: x.half(), "is of torch.float16"),
    "whole numbers": ("begun", lambda x: x.to(torch.uint8), "is of torch.uint8"),
    "strided": ("key", lambda x: in_a_larger_one(x), "is not contiguous CPU memory"),
    "expanded": ("key", lambda x: x[:1].expand(2, -1, -1), "is not contiguous CPU memory"),
    "transposed": ("key", lambda x: x.mT.contiguous().mT, "is not contiguous CPU memory"),
    "of no device": ("key", lambda x: x.to("meta"), "is not contiguous CPU memory"),
    "sparse": ("key", lambda x: x.to_sparse(), "is not contiguous CPU memory"),
    "misaligned": ("key", misaligned, "starts at an address that is not a multiple of 4"),
}


@pytest.mark.parametrize(("name", "change", "problem"), WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_an_array_that_does_not_fit_its_place_is_refused(name, change, problem):
    given = arrays()
    given[name] = change(given[name])
    with pytest.raises(KernelError, match=f"align_forward: {name} {problem}"):
        kernels._call("align_forward", "Align", {**SIZES, "shared_ahead": 1}, given)


WRONG_SIZES = {
    "nothing": {"batch": 0},
    "below nothing": {"horizon": -4},
    "beyond what is counted": {"steps": 2**63 - 1},
    "larger than can be multiplied": {"lookback": 2**28 + 1},
    "no multiple of the lanes": {"heads": 12},
    "neither yes nor no": {"shared_ahead": 2},
    "more wanted than made": {"wanted": 13},
    "more made than there are": {"made": 21},
    "made long before they are wanted": {"wanted": 8},
    "back to before the first": {"lookback": 20},
}


@pytest.mark.parametrize("change", WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_sizes_that_contradict_each_other_are_refused(change):
    with pytest.raises(KernelError, match=r"align_forward: .*(must be|must have)"):
        kernels._call("align_forward", "Align", {**SIZES, "shared_ahead": 1, **change}, arrays())


def test_an_argument_too_few_or_too_many_is_refused():
    given = arrays()
    for odd in (
        {name: x for name, x in given.items() if name != "norm"},
        given | {"d_cells": given["cells"]},
        given | {"nrom": given["norm"]},
    ):
        with pytest.raises(KernelError, match="is missing or unexpected"):
            align().arguments("align_forward", {**SIZES, "shared_ahead": 1}, odd)
    with pytest.raises(KernelError, match="takes the sizes batch, steps"):
        align().arguments("align_forward", SIZES, given)


@pytest.mark.parametrize("shared", ["key", "value", "cells"])
def test_what_is_written_shares_no_memory_with_anything(shared):
    room, given = torch.zeros(2 * 12 * 4 * 16 + 640), arrays()
    given["cells"] = room[:1536].view(2, 12, 4, 16)
    other = "norm" if shared == "cells" else shared
    last = given[other].numel()
    given[other] = room[1535 : 1535 + last].view(given[other].shape)
    with pytest.raises(KernelError, match=f"cells and {other} share memory"):
        align().arguments("align_forward", {**SIZES, "shared_ahead": 1}, given)


def test_what_is_only_read_may_share_memory():
    given = arrays()
    given["now"] = given["key"].view(-1)[: given["now"].numel()].view(SHAPES["now"])
    assert align().arguments("align_forward", {**SIZES, "shared_ahead": 1}, given)


def test_dilations_that_look_ahead_are_refused():
    x, own = torch.randn(1, 9, 8), torch.ones(1, 9) > 0
    with pytest.raises(KernelError, match="look ahead"):
        kernels.stacked_convolutions(x, own, [torch.randn(16, 8)], [torch.randn(8)], [-1])
    far = kernels.stacked_convolutions(x, own, [torch.randn(16, 8)], [torch.randn(8)], [2**62])
    assert far.isfinite().all()


LAID_OUT = {"strided": in_a_larger_one, "misaligned": misaligned, "a byte before the next": lambda x: misaligned(x, 3)}


def with_gradients(call, tensors: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
    out = call(*leaves)
    again = torch.linspace(-1, 1, out.numel()).view(out.shape)
    return [out, *torch.autograd.grad((out * again).sum(), [x for x in leaves if x.requires_grad])]


@pytest.mark.parametrize("lay_out", LAID_OUT.values(), ids=LAID_OUT)
def test_however_a_tensor_lies_in_memory_its_contexts_have_the_same_bits(lay_out):
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in SHAPES.values()] + [torch.rand(2, 20) > 0.2]

    def contexts(*parts: Tensor) -> Tensor:
        cells = kernels.aligned_contexts(*parts, lookback=5, wanted=9)
        return cells[:, 3:]  # of those before, some are not computed

    plain, other = with_gradients(contexts, given), with_gradients(contexts, [lay_out(x) for x in given])
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


@pytest.mark.parametrize("lay_out", LAID_OUT.values(), ids=LAID_OUT)
def test_however_a_tensor_lies_in_memory_its_codes_have_the_same_bits(lay_out):
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in ((2, 21, 8), (16, 8), (16, 8), (8,), (8,))]
    begun = torch.arange(21) >= torch.tensor([[0], [7]])

    def codes(x: Tensor, *parts: Tensor) -> Tensor:
        return kernels.stacked_convolutions(x, lay_out(begun), parts[:2], parts[2:], [1, 4])

    plain, other = with_gradients(codes, given), with_gradients(codes, [lay_out(x) for x in given])
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


def test_an_empty_batch_is_left_to_pytorch():
    assert kernels.use_kernels(torch.zeros(1))
    assert not kernels.use_kernels(torch.zeros(1), torch.zeros(0, 8))
