"""The training loop: forking sequences, bit-identical for any number of processes and after any interruption.

Everything that a step uses is a function of the settings and the step: the windows (`WindowPlan`), the dropout (seeded
by seed, step and micro-batch), the learning rate (which also follows the clock if max_minutes is short). A checkpoint
therefore needs no state of a random generator.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from mqcast.data.batch import Assembler, Batch
from mqcast.data.inputs import Inputs
from mqcast.data.on_sale import zeros_told_apart
from mqcast.data.panel import Panel
from mqcast.data.parallel import ahead
from mqcast.data.windows import WindowPlan, Windows
from mqcast.durable import claimed
from mqcast.errors import ConfigError, Interrupted, TrainingError
from mqcast.nn.members import AnyNetwork, member_seeds
from mqcast.nn.networks import Network
from mqcast.run import Run, exists
from mqcast.settings import RunConfig
from mqcast.train.checkpoint import Checkpoint, Checkpoints
from mqcast.train.distributed import Ranks, joined
from mqcast.train.divergence import divergence_error, places_of, windows_not_finite
from mqcast.train.memory import pick_micro_batch, require_memory
from mqcast.train.optimiser import autocast, learning_rate, new_optimiser, set_rate
from mqcast.train.records import Begin, Epoch, Listener, Message, MetricsFile, Record, Step
from mqcast.train.signals import StopRequests, stop_requests
from mqcast.train.spans import known_to_training, training_spans
from mqcast.train.validation import validate

OUT_OF_TIME = "out of time"


def fit(
    panel: Panel,
    config: RunConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    start_from: Run | None = None,
    listeners: tuple[Listener, ...] = (),
    device: str = "auto",
) -> Run:
    """Train a network on a panel and write the run to `folder`. Under torchrun, all processes make the same call.

    With `resume`, an existing run continues from its newest checkpoint; settings and data must be the same.
    With `start_from`, a new run starts from the weights of a trained one, which must have the same kind of network and
    a panel with the same columns and categories (`like=`). Scales are fitted to the new data, and the state of the
    optimiser is new.
    """
    with joined(device, config.train.num_threads) as ranks:
        return train(panel, config, Path(folder), ranks, resume, listeners, start_from)


def train(
    panel: Panel,
    config: RunConfig,
    folder: Path,
    ranks: Ranks,
    resume: bool = False,
    listeners: tuple[Listener, ...] = (),
    start_from: Run | None = None,
) -> Run:
    """Train with processes that have joined already; only one group at a time can train in a folder."""
    with ExitStack() as stack:
        if ranks.is_first:
            stack.enter_context(claimed(folder, "training in", make_parents=True))
        ranks.agree(1)  # no process reads the folder before it is claimed
        training = Training(panel, config, folder, ranks, resume, listeners, start_from)
        training.run_to_end()
        return training.run


@dataclass
class State:
    """The progress of training; only numbers and text, which JSON stores exactly."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    trajectories: int = 0
    seconds: float = 0.0
    epoch_loss: float = 0.0  # this and the next one: since the last validation
    epoch_count: float = 0.0
    validated_step: int = 0  # the step of the last validation
    best_loss: float | None = None
    best_step: int | None = None
    epochs_without_gain: int = 0  # validations since the best one
    finished: str | None = None
    metrics_size: int = 0


class Training:
    """The network, optimiser and state of one run, and the steps that change them."""

    def __init__(
        self,
        panel: Panel,
        config: RunConfig,
        folder: Path,
        ranks: Ranks,
        resume: bool = False,
        listeners: tuple[Listener, ...] = (),
        start_from: Run | None = None,
    ):
        panel.require_verified()
        self.panel, self.config, self.ranks, self.start_from = panel, config, ranks, start_from
        self.listeners = listeners if ranks.is_first else ()
        require_memory(config.model, Inputs.of(panel), config.window.horizon)
        train, valid = training_spans(panel, config)
        if start_from is not None:
            start_from.check_start(config, panel)
        known = known_to_training(panel, config, start_from and start_from.layout)
        self.plan = WindowPlan(known, config.window, train, seed=config.train.seed)
        self.assemble = Assembler.fit(known, config.window, config.scaling, train.until)
        known_valid = known if valid is None else known_to_training(panel, config, known.layout, valid.until)
        self.assemble_valid = self.assemble.on_panel(known_valid)
        self.until = train.until
        to_validate = config.window.replace(num_trajectories=None)
        most = config.train.max_validation_windows
        self.valid_plan = valid and WindowPlan(known_valid, to_validate, valid, shuffle=False, max_windows=most)
        self.run = self._open(folder, resume)
        self.network: AnyNetwork = self.run.new_network(start_from).to(ranks.device)
        self.seeds = member_seeds(config.train.seed, config.model.members)
        self.dropout_bits = [torch.Generator(ranks.device) for _ in self.network.members]
        for network, bits in zip(self.network.members, self.dropout_bits, strict=True):
            network.drop_by(bits)
        self.parameters: dict[str, Tensor] = dict(self.network.named_parameters())
        self.gradient = torch.zeros(sum(p.numel() for p in self.parameters.values()), device=ranks.device)
        for parameter, part in zip(self.parameters.values(), self._parts(self.gradient), strict=True):
            parameter.grad = part
        self.optimiser = new_optimiser(self.network, config.train)
        self.average = self._copy() if config.train.average else None
        self.best: dict[str, Tensor] | None = None
        self.state = State()
        self.checkpoints = Checkpoints(self.run.checkpoints)
        self.metrics: MetricsFile | None = None
        self.stop = StopRequests()
        self._restore()
        steps = config.train.max_epochs * self.plan.num_batches(0)
        self.total_steps = min(steps, config.train.max_steps or steps)
        self.saved_at = time.monotonic()
        self.clock = self.saved_at - self.state.seconds

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run_to_end(self) -> None:
        """Train until validations show no improvement or a limit is reached, and write the weights to forecast with."""
        if self.ranks.agree(self.run.is_trained and self._is_out_of_time()):
            self._notify(
                Message(f"already done: max_minutes ({self.config.train.max_minutes:g}); allow more to continue")
            )
            return
        with ExitStack() as stack:
            if self.ranks.is_first:
                self.run.begin_training()
                metrics = MetricsFile(self.run.metrics, self.config.train.log_every, self.state.metrics_size)
                self.metrics = stack.enter_context(closing(metrics))
            self._notify(Begin(self.state.step, self.total_steps))
            if note := zeros_told_apart(self.plan.panel, self.config.scaling, self.until):
                self._notify(Message(note))
            if why := self.network.why_not_compiled():
                self._notify(Message(f"the decoder is not compiled ({why}): training takes about twice as long"))
            self.stop = stack.enter_context(stop_requests())
            reason = self.state.finished
            while reason is None:
                reason = self._run_to_validation()
            if self.ranks.is_first:
                self.run.save_network(self.weights())
            self.ranks.agree(1)  # no process leaves before the weights are written
        self._notify(Message(f"done: {reason}"))

    def _run_to_validation(self) -> str | None:
        """Train until the next validation, and validate. Returns why training is done, or None."""
        state, reason = self.state, None
        self.network.train()
        for place, leaves, batches in ahead(self._steps(), 2):
            state.epoch, state.step_in_epoch = place
            reason = self._run_step(leaves, batches)
            if reason is not None:
                break
            if time.monotonic() - self.saved_at >= 60 * self.config.train.checkpoint_minutes:
                self._save()
        return self._end_with_validation(reason)

    def _places(self) -> Iterator[tuple[int, int]]:
        """Epoch and step in it of each step until the next validation."""
        state, every = self.state, self.config.train.validate_every
        epoch, first = state.epoch, state.step_in_epoch
        rest = ((epoch, step) for step in range(first, self.plan.num_batches(epoch)))
        if every is None:
            return rest
        later = range(epoch + 1, self.config.train.max_epochs)
        after = ((one, step) for one in later for step in range(self.plan.num_batches(one)))
        return islice(chain(rest, after), state.validated_step - state.validated_step % every + every - state.step)

    def _steps(self) -> Iterator[tuple[tuple[int, int], list[Windows], dict[int, Batch]]]:
        """The place and micro-batches of each step: the windows of all, and the tensors of those of this rank."""
        for place in self._places():
            leaves = self.plan.batch(*place).split(self.run.micro_batch)
            yield place, leaves, {i: self.assemble(leaves[i]) for i in self.ranks.share(len(leaves))}

    def _run_step(self, leaves: list[Windows], batches: dict[int, Batch]) -> str | None:
        """One step of the optimiser on the summed gradients of the micro-batches. Returns why to stop, or None."""
        state, config, ranks = self.state, self.config.train, self.ranks
        table = torch.zeros(len(leaves), 3, dtype=torch.float64)  # loss, terms, trajectories

        def gradient_of(i: int) -> Tensor:
            batch, rows, parts = batches[i].to(ranks.device), [], []
            for network in self.network.members:
                loss, count = self._loss(batch, i, network)
                rows.append(torch.stack((loss.detach(), count, batch.is_fct.sum().to(count.dtype))))
                parts.append(_flat_gradient(loss, list(network.parameters())))
            table[i] = torch.stack(rows).cpu().double().mean(dim=0)
            return torch.cat(parts)

        total = ranks.sum_of_leaves(gradient_of, len(leaves), self.gradient.numel())
        table = ranks.add(torch.cat((table, self._stop_requests()))).cpu()
        loss, count, num_trajectories = table[: len(leaves)].sum(dim=0).tolist()
        norms = [float(part.norm()) / max(count, 1) for part in self._by_member(total)]
        if not all(math.isfinite(x) for x in (loss, *norms)):
            raise self._divergence(leaves, table[: len(leaves), 0])
        rate = learning_rate(config, state.step, self.total_steps, seconds=float(table[len(leaves), 1]))
        if count:
            self._update(total.div_(count), norms, rate)
        state.step += 1
        state.step_in_epoch += 1
        state.trajectories += int(num_trajectories)
        state.epoch_loss += loss
        state.epoch_count += count
        state.seconds = time.monotonic() - self.clock
        mean_loss, norm = loss / max(count, 1), max(norms)
        self._notify(Step(state.step, state.epoch, mean_loss, rate, norm, state.trajectories, state.seconds))
        return self._reason_to_stop(table[len(leaves) :, 0].int().tolist())

    def _loss(self, batch: Batch, leaf: int, network: Network) -> tuple[Tensor, Tensor]:
        """The summed loss of a micro-batch by one member, and its number of terms."""
        with self._dropout(leaf):
            return network.loss(batch, batch.num_fcts)

    @contextmanager
    def _dropout(self, leaf: int) -> Iterator[None]:
        """Seed each member's dropout by its seed, step and micro-batch, and use the precision of the settings."""
        for seed, bits in zip(self.seeds, self.dropout_bits, strict=True):
            seeds = np.random.SeedSequence([seed, self.state.step, leaf])
            bits.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))  # int64
        with autocast(self.config.train, self.ranks.device):
            yield

    def _by_member(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor of all parameters, one per member."""
        return list(flat.view(len(self.network.members), -1))

    def _update(self, gradient: Tensor, norms: list[float], rate: float) -> None:
        """Clip the gradient of each member on its own, and take one step."""
        longest = self.config.train.clip_norm
        for own, out, norm in zip(self._by_member(gradient), self._by_member(self.gradient), norms, strict=True):
            scale = longest / norm if longest is not None and norm > longest else 1.0
            torch.mul(own, scale, out=out)
        set_rate(self.optimiser, rate)
        self.optimiser.step()
        if self.average is not None and self.config.train.average:
            decay = min(self.config.train.average, (1 + self.state.step) / (10 + self.state.step))
            now = [parameter.detach() for parameter in self.parameters.values()]
            get_ema_multi_avg_fn(decay)([self.average[name] for name in self.parameters], now, self.state.step)

    def _end_with_validation(self, reason: str | None) -> str | None:
        """Validate, keep the best weights, decide whether to stop, and save. Returns why training is done, or None.

        When time runs out, the checkpoint is of before the validation, so that a run with more time can continue.
        """
        state, config = self.state, self.config.train
        if out_of_time := reason == OUT_OF_TIME:
            self._save()
            reason = f"max_minutes ({config.max_minutes:g})"
        valid_loss, by_level = self._validate()
        to_beat = math.inf if state.best_loss is None else state.best_loss - config.min_gain
        is_best = valid_loss is not None and valid_loss < to_beat
        if is_best:
            state.best_loss, state.best_step, state.epochs_without_gain = valid_loss, state.step, 0
            self.best = self._copy(self.average)
        else:
            state.epochs_without_gain += 1
        train_loss = state.epoch_loss / max(state.epoch_count, 1)
        state.seconds = time.monotonic() - self.clock
        self._notify(
            Epoch(state.step, state.epoch, train_loss, valid_loss, by_level, is_best, state.trajectories, state.seconds)
        )
        if state.step_in_epoch == self.plan.num_batches(state.epoch):
            state.epoch, state.step_in_epoch = state.epoch + 1, 0
        state.epoch_loss, state.epoch_count, state.validated_step = 0.0, 0.0, state.step
        if reason is None and state.epoch == config.max_epochs:
            reason = f"max_epochs ({state.epoch})"
        if reason is None and config.patience and state.epochs_without_gain >= config.patience:
            reason = f"no improvement in {config.patience} validations"
        if not out_of_time:
            state.finished = reason
            self._save()
        return reason

    def _validate(self) -> tuple[float | None, dict[str, float]]:
        """The validation loss and the quantile risks; None without a validation span."""
        if self.valid_plan is None:
            return None, {}
        weights = self.average or self.parameters
        return validate(self.network, weights, self.valid_plan, self.assemble_valid, self.run.micro_batch, self.ranks)

    # -- weights -------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The result of training: the best weights with early stopping, otherwise the last ones, averaged if so set."""
        if self.config.train.patience is not None and self.best is not None:
            return self.best
        return self._copy(self.average)

    def _copy(self, weights: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in (weights or self.parameters).items()}

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor, one per parameter."""
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        parts = zip(flat.split(sizes), self.parameters.values(), strict=True)
        return [part.view_as(parameter) for part, parameter in parts]

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def _open(self, folder: Path, resume: bool) -> Run:
        """The run to resume, or a new one; only the first rank writes."""
        is_there = bool(self.ranks.agree(exists(folder)))
        if is_there and resume:
            run = Run.open(folder)
            run.check_resumable(self.config, self.panel, self.start_from)
            return run
        if self.ranks.is_first:
            Run.start(folder, self.config, self.panel, self.assemble, self._micro_batch(), self.start_from)
        self.ranks.agree(1)
        return Run.open(folder)

    def _micro_batch(self) -> int:
        config, window = self.config.train, self.config.window
        if config.micro_batch is not None:
            return config.micro_batch
        inputs, device = self.assemble.inputs, self.ranks.device
        network = Network.seeded(self.config.model, inputs, window.horizon, config.seed).to(device)
        network.drop_by(torch.Generator(device))
        one = self.assemble(self.plan.batch(0, 0).take(np.arange(1))).to(device)
        return pick_micro_batch(network, one, window.batch_size, config)

    def _save(self) -> None:
        if not self.ranks.is_first:
            return
        tensors = {f"model.{name}": p for name, p in self.parameters.items()}
        for name, parameter in self.parameters.items():
            tensors |= {f"optimiser.{key}.{name}": value for key, value in self.optimiser.state[parameter].items()}
        for part, weights in (("average", self.average), ("best", self.best)):
            tensors |= {f"{part}.{name}": tensor for name, tensor in (weights or {}).items()}
        self.state.seconds = time.monotonic() - self.clock
        self.state.metrics_size = self.metrics.sync() if self.metrics is not None else 0
        name = f"{self.state.epoch:05}-{self.state.step:09}"
        self.checkpoints.save(name, tensors, asdict(self.state))
        self.saved_at = time.monotonic()

    def _restore(self) -> None:
        """Load the newest intact checkpoint, the same one on all ranks."""
        checkpoint = self.checkpoints.newest(lambda text: self._notify(Message(text)))
        step = -1 if checkpoint is None else checkpoint.state["step"]
        if self.ranks.agree(step) != step:
            raise ConfigError(
                f"the processes see different checkpoints in {self.run.checkpoints}; use a folder that all share"
            )
        if checkpoint is None:
            return
        self._load(checkpoint)
        self._notify(Message(f"resuming from step {self.state.step:,} in {self.run.folder}"))

    def _load(self, checkpoint: Checkpoint) -> None:
        self.state = State(**checkpoint.state)
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in checkpoint.tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor.to(self.ranks.device)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(parts["model"][name])
        for key, tensor in parts.get("optimiser", {}).items():
            key, _, name = key.partition(".")
            self.optimiser.state[self.parameters[name]][key] = tensor
        self.average, self.best = parts.get("average"), parts.get("best")

    # -- reporting and stopping ----------------------------------------------------------------------------------------

    def _notify(self, record: Record) -> None:
        for listener in (self.metrics, *self.listeners):
            if listener is not None:
                listener(record)

    def _stop_requests(self) -> Tensor:
        """One row per rank: the signal that told it to stop, and, from the first rank, the seconds of training."""
        rows = torch.zeros(self.ranks.num, 3, dtype=torch.float64)
        rows[self.ranks.rank, 0] = self.stop.signal
        if self.ranks.is_first:
            rows[0, 1] = time.monotonic() - self.clock
            if not self.stop.signal and self._is_out_of_time():
                rows[0, 0] = -1
        return rows

    def _is_out_of_time(self) -> bool:
        limit = self.config.train.max_minutes
        return limit is not None and time.monotonic() - self.clock > 60 * limit

    def _reason_to_stop(self, requests: list[int]) -> str | None:
        """Why training is done after this step, or None; saves and raises if a signal number to stop."""
        if self.state.step == self.config.train.max_steps:
            return f"max_steps ({self.state.step})"
        number = next((request for request in requests if request > 0), None)
        if number is not None:
            self._save()
            self.ranks.agree(1)  # no process leaves before the checkpoint is saved
            raise Interrupted(
                f"{signal.Signals(number).name}: stopped after step {self.state.step:,}, saved in {self.run.folder}; "
                "continue with the same command and --resume (from Python: resume=True)",
                number,
            )
        if -1 in requests:
            return OUT_OF_TIME
        return None

    def _divergence(self, leaves: list[Windows], losses: Tensor) -> TrainingError:
        """The error of a loss or gradient that is not finite; runs the step again to find the windows that cause it."""
        suspects = [i for i, loss in enumerate(losses.tolist()) if not math.isfinite(loss)]
        broken = []
        for i in suspects or range(len(leaves)):
            with self._dropout(i):
                broken.append(windows_not_finite(self.network, self.assemble, leaves[i], self.ranks.device))
        return divergence_error(
            "loss" if suspects else "gradient",
            self.state.step + 1,
            sum(map(len, leaves)),
            [place for windows in broken for place in places_of(windows, self.assemble.panel)],
            self.run.folder,
        )


def _flat_gradient(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    parts = zip(torch.autograd.grad(loss, parameters, allow_unused=True), parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if part is None else part).flatten() for part, p in parts])
