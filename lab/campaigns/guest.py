"""Whatever is done with a Forecaster, whether it succeeds or fails, the host process is left as it was.

Each trial calls a few verbs in a row, in the main thread or another one, with random settings. All that a host may
have set is compared before and after: random states, threads, signal handlers, warnings filters, locale, environment,
garbage collection, floating-point errors, umask, folder. In some trials, two fits in two threads, beside a thread that
draws random numbers, are compared with each fit alone, bit for bit.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import locale
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from lab.campaigns.campaign import Campaign
from mqcast import Forecaster, MqcastError

SMALL = {"window": {"history": 12, "num_fcts": 8}, "model": {"hidden_dim": 8, "encoder_dilations": (1, 2, 4)}}
MODELS = ("mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn", "seasonal-naive")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
TWINS = 0.2  # share of the trials that fit in two threads


def in_a_new_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def umask() -> int:
    os.umask(mask := os.umask(0o022))
    return mask


def process_state() -> dict[str, object]:
    """All that a host may have set, or relies on."""
    return {
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "numpy's random state": repr(np.random.get_state()),  # noqa: NPY002
        "python's random state": random.getstate(),
        "torch's threads here": torch.get_num_threads(),
        "torch's threads elsewhere": in_a_new_thread(torch.get_num_threads),
        "torch's settings": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_float32_matmul_precision()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "signal handlers": [signal.getsignal(number) for number in SIGNALS],
        "warnings filters": list(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
        "environment": dict(os.environ),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "floating-point errors": np.geterr(),
        "umask": umask(),
        "working folder": Path.cwd(),
        "module search path": list(sys.path),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "logging": (logging.getLogger().level, len(logging.getLogger().handlers)),
        "polars' settings": pl.Config.state(),
    }


def sales(rng: np.random.Generator) -> pl.DataFrame:
    weeks = pl.datetime_range(pl.datetime(2022, 1, 2), pl.datetime(2023, 2, 19), "1w", eager=True)
    parts = [pl.DataFrame({"ds": weeks, "y": rng.poisson(5, len(weeks)).astype(float)}) for _ in range(4)]
    return pl.concat([part.select(pl.lit(f"item {i}").alias("unique_id"), "ds", "y") for i, part in enumerate(parts)])


def forecaster(rng: np.random.Generator, folder: Path | None = None) -> Forecaster:
    tables: dict[str, Any] = SMALL | {"train": {"num_threads": int(rng.integers(1, 4))}}
    if rng.random() < 0.3:
        tables["train"]["micro_batch"] = 4
    if rng.random() < 0.2:
        tables["train"]["learning_rate"] = 1e30  # which fails
    settings = {
        "max_steps": int(rng.integers(1, 4)),
        "seed": int(rng.integers(100)),
        "verbose": bool(rng.random() < 0.2),
    }
    return Forecaster(str(rng.choice(MODELS)), 4, config=tables, folder=folder, **settings)


def call_verbs(rng: np.random.Generator, place: Path) -> list[str]:
    """Call a few verbs in a row, some of which fail; the names of what was called."""
    frame, made, done = sales(rng), forecaster(rng, place / "run" if rng.random() < 0.3 else None), []
    steps: dict[str, Callable[[], Any]] = {
        "fit": lambda: made.fit(frame),
        "fit of nonsense": lambda: made.fit(frame.with_columns(y=pl.lit("much"))),
        "predict": lambda: made.predict(),
        "predict from nowhere": lambda: made.predict(cutoff="1900-01-07"),
        "backtest": lambda: made.backtest(frame),
        "evaluate": lambda: made.evaluate(),
        "report": lambda: made.report(place / "report.html"),
        "save": lambda: made.save(place / "saved"),
        "load": lambda: Forecaster.load(place / "saved").predict(),
    }
    for name in ["fit", *rng.choice(list(steps), size=int(rng.integers(1, 4)), p=CHANCES)]:
        with contextlib.suppress(MqcastError):
            steps[str(name)]()
        done.append(str(name))
    return done


CHANCES = np.array([2, 1, 4, 1, 2, 1, 1, 3, 3]) / 18


def try_verbs(campaign: Campaign, number: int, rng: np.random.Generator) -> None:
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)
    with tempfile.TemporaryDirectory(prefix="guest-") as place:
        before, elsewhere = process_state(), bool(rng.random() < 0.3)
        with Path(os.devnull).open("w") as quiet, contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
            done = in_a_new_thread(lambda: call_verbs(rng, Path(place))) if elsewhere else call_verbs(rng, Path(place))
        after = process_state()
    changed = [name for name, state in before.items() if after[name] != state]
    kind = "in another thread" if elsewhere else "in the main thread"
    campaign.check(not changed, kind, f"trial {number}: {done} changed {changed}")


def weights(seed: int, model: str, frame: pl.DataFrame) -> str:
    made = Forecaster(model, 4, config=SMALL, max_steps=2, seed=seed, verbose=False).fit(frame)
    assert made.run_ is not None
    return hashlib.sha256((made.run_.folder / "model.safetensors").read_bytes()).hexdigest()


def try_twins(campaign: Campaign, number: int, rng: np.random.Generator) -> None:
    frame, models = sales(rng), [str(model) for model in rng.choice(MODELS[:-1], size=2)]
    jobs = [(number + i, model, frame) for i, model in enumerate(models)]
    alone = [weights(*job) for job in jobs]
    stop = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        host = pool.submit(lambda: [torch.rand(10) for _ in iter(stop.is_set, True)] and None)
        together = [job.result() for job in [pool.submit(weights, *job) for job in jobs]]
        stop.set()
        host.result()
    campaign.check(alone == together, "two fits in threads", f"trial {number}: {models}")


def main() -> None:
    campaign = Campaign("Fitting and forecasting leave the host as it was; fits in threads give equal weights.", 300)
    torch.set_num_threads(2)
    before = warnings.filters[:]
    warnings.simplefilter("ignore")
    for number, rng in campaign.trials():
        (try_twins if rng.random() < TWINS else try_verbs)(campaign, number, rng)
    warnings.filters[:] = before
    campaign.finish()


if __name__ == "__main__":
    main()
