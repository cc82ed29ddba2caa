"""Calls the kernels on tensors whose every byte the address sanitizer guards; run by test_kernels.py."""

import sys
from itertools import product
from pathlib import Path

import torch

from mqcast.nn import kernels, library

library.FOLDER = Path(sys.argv[1])
assert kernels.status() == "compiled", kernels.status()
for batch, steps, wanted, horizon, heads, contexts, lookback in (
    (2, 40, 30, 7, 8, 16, 12),
    (1, 5, 5, 9, 16, 8, 50),
    (2, 33, 1, 24, 24, 24, 0),
    (1, 26, 26, 1, 8, 8, 100),
):
    for with_feedback, residual, coded, preceded in product((True, False), repeat=4):
        made = wanted + horizon - 1
        known = min(made if with_feedback else wanted, steps)

        def r(*shape: int) -> torch.Tensor:
            return torch.randn(*shape).requires_grad_()

        layers, first = 3, torch.tensor([0, steps])[:batch, None]
        weights, biases = [r(2 * heads, heads) for _ in range(layers)], [r(heads) for _ in range(layers)]
        own = torch.arange(steps) >= first
        kernels.stacked_convolutions(r(batch, steps, heads), own, weights, biases, [1, 7, 50]).sum().backward()
        begun = torch.rand(batch, steps) > 0.2
        for size in (1.0, 40.0):
            attended = kernels.aligned_contexts(
                r(batch, known, heads) * size, r(1, known + horizon - 1, heads), r(batch, steps, heads),
                r(batch, steps, contexts), begun, lookback, wanted,
            )  # fmt: skip
        steps_of = {"local": heads} | ({"block": contexts} if residual else {})
        of_context, parts, kept = heads, {"attended": attended}, torch.ones(batch, known, contexts)
        if with_feedback:
            steps_of |= {"query": heads} | ({"feedback_block": contexts} if residual else {})
            of_context = 3 * heads + (2 if residual else 1) * contexts
            parts |= {"key_now": r(batch, known, heads), "value_shift": r(contexts), "of_feedback": r(heads, contexts)}
        for name, width in steps_of.items():
            parts |= {f"{name}_now": r(batch, known, width), f"{name}_ahead": r(batch, made, width)}
            parts |= {f"{name}_{part}": r(width) for part in ("gain", "shift") if "block" in name}
        parts |= {"read": r(batch, known, 3 * heads), "code": r(horizon, heads)} if coded else {}
        parts |= {"precedent": torch.randn(batch, known, horizon, 2), "of_precedent": r(2, heads)} if preceded else {}
        parts |= {"of_context": r(of_context, contexts), "out": r(3, heads), "out_shift": r(3)}
        kept_feedback = kept if with_feedback else None
        cells = kernels.DecoderCall(begun[:, -known:], kept, kept_feedback, torch.rand(horizon, 3), wanted, parts)
        out = cells.quantiles()
        assert out.isfinite().all()
        out.sum().backward(retain_graph=True)
        targets, scored = torch.randn(out.shape[:-1]), torch.rand(out.shape[:-1]) > 0.3
        cells.loss(targets, scored, torch.tensor([0.1, 0.5, 0.9])).backward()
sys.stdout.write("walked\n")
