"""Output of training programs as lines with times, of which the whole duration is known.

Each line is written by hand after the tool's source or documentation, which is named; logs of real runs are in
`fixtures/`. A training is `epochs` epochs of `steps` steps and a validation, after a start-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from services.collector.profiler.progress.choice import Known

Lines = Iterator[tuple[float, str]]


@dataclass(slots=True)
class Training:
    """A simulated training; `now_s` is its clock."""

    epochs: int = 8
    steps: int = 120
    step_s: float = 0.2
    validation_steps: int = 20
    startup_s: float = 12.0
    noise: float = 0.1
    seed: int = 0
    slow_first: float = 1.5
    """The first ten steps take so many times as long."""
    now_s: float = 0.0
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self.now_s = self.startup_s
        self._random = np.random.default_rng(self.seed)

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps

    def over_epochs(self) -> Iterator[int]:
        """From 0."""
        yield from range(self.epochs)

    def over_steps(self, epoch: int, every: int = 1, count: int = 0) -> Iterator[int]:
        """From 1, after each step; only those that are printed."""
        for step in range(1, (count or self.steps) + 1):
            slow = self.slow_first if epoch == 0 and step <= 10 else 1.0
            self.now_s += self.step_s * slow * float(np.clip(self._random.normal(1.0, self.noise), 0.3, 2.0))
            if step % every == 0 or step == (count or self.steps):
                yield step

    def validate(self, every: int = 1) -> Iterator[int]:
        """The same of the validation."""
        if self.validation_steps:
            yield from self.over_steps(1, every, self.validation_steps)


def bar(done: int, total: int, desc: str = "", tail: str = "") -> str:
    """A line of tqdm 4.67."""
    part = done / total
    filled = int(10 * part)
    left = f"{desc}: " if desc else ""
    return f"{left}{part:4.0%}|{'█' * filled}{' ' * (10 - filled)}| {done}/{total} [00:05<00:07,  5.01it/s{tail}]"


def epochs_only(line: str, first: int = 1) -> Callable[[Training], Lines]:
    """One line at the end of each epoch."""

    def lines(job: Training) -> Lines:
        for epoch in job.over_epochs():
            list(job.over_steps(epoch))
            list(job.validate())
            yield job.now_s, line.format(e=epoch + first, E=job.epochs, last=job.epochs - 1 + first)

    return lines


def within_epochs(
    line: str,
    *,
    before: str = "",
    after: str = "",
    first: int = 1,
    every: int = 10,
    zero: int = 0,
    validation: str = "",
) -> Callable[[Training], Lines]:
    """Lines at the beginning, during and at the end of each epoch."""

    def lines(job: Training) -> Lines:
        for epoch in job.over_epochs():
            names = {"e": epoch + first, "E": job.epochs, "last": job.epochs - 1, "N": job.steps, "T": job.total}
            if before:
                yield job.now_s, before.format(**names)
            for step in job.over_steps(epoch, every):
                here = step - zero
                done = names | {"s": here, "g": epoch * job.steps + step, "part": here / job.steps}
                fraction = epoch + step / job.steps
                yield job.now_s, line.format(**done, f=fraction, samples=step * 32, S=job.steps * 32)
            for step in job.validate(5):
                if validation:
                    yield job.now_s, validation.format(v=step, V=job.validation_steps, **names)
            if after:
                yield job.now_s, after.format(**names)

    return lines


def bars_of_epoch(job: Training, epoch: int, train: str, valid: str | None) -> Lines:
    """The bars of one epoch's training and validation."""
    names = {"e": epoch + 1, "z": epoch, "E": job.epochs}
    if train != "-":
        yield job.now_s, bar(0, job.steps, train.format(**names))
    for step in job.over_steps(epoch, 3):
        if train != "-":
            yield job.now_s, bar(step, job.steps, train.format(**names))
    for step in job.validate(2):
        if valid is not None:
            yield job.now_s, bar(step, job.validation_steps, valid.format(**names))


def bars(
    train: str = "",
    valid: str | None = None,
    *,
    outer: str | None = None,
    prefix: tuple[str, ...] = (),
    after: str = "",
) -> Callable[[Training], Lines]:
    """Bars of tqdm: of each epoch, of its validation, over the epochs, and before the training; ``-``: none."""

    def lines(job: Training) -> Lines:
        for at, (desc, done) in enumerate((desc, done) for desc in prefix for done in range(0, 101, 10)):
            yield 1.0 + 0.3 * at, bar(done, 100, desc)
        for epoch in job.over_epochs():
            names = {"e": epoch + 1, "z": epoch, "E": job.epochs}
            if outer is not None:
                yield job.now_s, bar(epoch, job.epochs, outer)
            yield from bars_of_epoch(job, epoch, train, valid)
            yield job.now_s, after.format(**names)
        if outer is not None:
            yield job.now_s, bar(job.epochs, job.epochs, outer)

    return lines


def whole(line: str, every: int = 10) -> Callable[[Training], Lines]:
    """Steps from the beginning to the end; a validation is between them."""

    def lines(job: Training) -> Lines:
        for epoch in job.over_epochs():
            for step in job.over_steps(epoch, every):
                done = epoch * job.steps + step
                names = {"g": done, "T": job.total, "G": done * 100, "TT": job.total * 100, "k": done / 1000}
                yield job.now_s, line.format(**names, kT=job.total / 1000, f=done / job.steps)
            list(job.validate())

    return lines


def hugging_face(*, quoted: bool, every: int, evaluation: bool = True) -> Callable[[Training], Lines]:
    """The Trainer of transformers: a bar of all steps, dicts with the epoch, a bar of each evaluation."""

    def lines(job: Training) -> Lines:
        quote = "'" if quoted else ""
        for epoch in job.over_epochs():
            for step in job.over_steps(epoch):
                done = epoch * job.steps + step
                yield job.now_s, bar(done, job.total)
                if done % every == 0:
                    part = f"{quote}{done / job.steps:.4g}{quote}"
                    yield job.now_s, f"{{'loss': 0.31, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': {part}}}"
            for step in job.validate() if evaluation else ():
                yield job.now_s, bar(step, job.validation_steps)
            yield job.now_s, f"{{'eval_loss': 0.9, 'eval_runtime': 1.3, 'epoch': {quote}{epoch + 1.0}{quote}}}"

    return lines


def best_and_times(job: Training) -> Lines:
    """B9: numbers of other epochs, and durations, beside the honest ones."""
    for epoch in job.over_epochs():
        list(job.over_steps(epoch))
        list(job.validate())
        yield job.now_s, f"Epoch {epoch + 1}/{job.epochs} loss 0.3"
        yield job.now_s, "Time per epoch: 20.03s"
        yield job.now_s, f"Best val loss so far at epoch {1 + epoch // 2}"


def much_output(job: Training) -> Lines:
    """Thousands of lines with numbers and labels that never come again."""
    for epoch in job.over_epochs():
        for step in job.over_steps(epoch):
            yield job.now_s, f"Epoch [{epoch + 1}/{job.epochs}] Step [{step}/{job.steps}] loss: 0.2"
            for at in range(10):
                word = "".join(chr(97 + (step * 31 + at * 7 + epoch + k * 5) % 26) for k in range(6))
                yield job.now_s, f"{word} step {at} of {step * 17 + at + 2}"
        list(job.validate())


@dataclass(frozen=True, slots=True)
class Format:
    """How a tool prints its progress."""

    name: str
    lines: Callable[[Training], Lines]
    known: str = ""
    """What has to be given besides, since the tool does not print it: epochs, steps, label."""

    def given(self, job: Training) -> Known:
        """What the command line says."""
        flags = self.known.split(",")
        label = next((flag.removeprefix("label=") for flag in flags if flag.startswith("label=")), "")
        return Known(
            job.epochs if "epochs" in flags else 0,
            job.total if "steps" in flags else 0,
            label.replace("T", str(job.total)),
        )


FORMATS = (
    Format("tqdm 4.67, one bar of each epoch with its number", bars("Epoch {e}/{E}")),
    Format("tqdm, nested without names", bars("", None, outer="")),
    Format("tqdm, nested, with a bar of the validation", bars("", "", outer="")),
    Format("tqdm, 'Training epoch' (B5)", bars("-", outer="Training epoch")),
    Format("tqdm, 'Epochs'", bars("-", outer="Epochs")),
    Format("tqdm, one without names, with --epochs", bars("", None), "epochs"),
    Format("tqdm, training and validation without names, with --epochs", bars("", ""), "epochs"),
    Format("tqdm, training and validation without names", bars("", "")),
    Format(
        "tqdm, bars before the training (B2)", bars("Epoch {e}/{E}", "Evaluating", prefix=("Map", "Map", "Loading"))
    ),
    Format("tqdm, and a line after each epoch", bars("", None, after="Epoch {e}/{E} loss 0.31 acc 0.9")),
    Format("tqdm, unit_scale", whole("steps:  20%|██        | {k:.3g}k/{kT:.3g}k [00:02<00:18, 1.49kit/s]")),
    Format("transformers 4 Trainer", hugging_face(quoted=False, every=10)),
    Format("transformers 5 Trainer", hugging_face(quoted=True, every=10)),
    Format("transformers 5 Trainer, no evaluation", hugging_face(quoted=True, every=50, evaluation=False)),
    Format("transformers 5 Trainer, rare logs", hugging_face(quoted=True, every=500)),
    Format("transformers 5 Trainer, rare logs, with --steps", hugging_face(quoted=True, every=500), "steps"),
    Format("Lightning 2 TQDMProgressBar", bars("Epoch {z}", "Validation DataLoader 0"), "epochs"),
    Format(
        "Lightning 2 RichProgressBar (B3)",
        within_epochs("Epoch {e}/{last}  ━━━━━━━ {s}/{N} 0:00:01 • 0:00:04 23.05it/s loss: 0.020", first=0),
    ),
    Format(
        "Keras 2",
        within_epochs(" {s}/{N} [=====>....] - ETA: 0s - loss: 0.3515", before="Epoch {e}/{E}", every=3),
    ),
    Format(
        "Keras 3 (B8)",
        within_epochs(
            "\x1b[1m {s}/{N}\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m1s\x1b[0m 44ms/step - loss: 0.3515",
            before="Epoch {e}/{E}",
            every=3,
        ),
    ),
    Format(
        "torchvision references (B7)",
        within_epochs(
            "Epoch: [{e}]  [{s:3d}/{N}]  eta: 0:00:21  lr: 0.1  loss: 2.1 (2.3)  time: 0.2  data: 0.01  max mem: 512",
            first=0,
            zero=1,
            validation="Test:  [{v}/{V}]  eta: 0:00:02  loss: 2.1 (2.1)",
            after="Epoch: [{e}] Total time: 0:00:23",
        ),
        "epochs",
    ),
    Format(
        "PyTorch's MNIST example",
        within_epochs(
            "Train Epoch: {e} [{samples}/{S} ({part:.0%})]\tLoss: 0.3",
            after="\nTest set: Average loss: 0.05, Accuracy: 98{e}0/10000 (98%)\n",
        ),
        "epochs",
    ),
    Format(
        "PyTorch's ImageNet example (B7)",
        within_epochs(
            "Epoch: [{e}][{s:4d}/{N}]\tTime  0.201 ( 0.201)\tData  0.01 ( 0.01)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.00",
            first=0,
            validation="Test: [{v:3d}/{V}]\tTime  0.201 ( 0.201)\tLoss 6.9e+00",
        ),
        "epochs",
    ),
    Format("PyTorch's tutorial, [1,  2000]", within_epochs("[{e}, {s:5d}] loss: 2.2", every=20), "epochs"),
    Format(
        "PyTorch's tutorial, Epoch 0/24",
        within_epochs("running loss 0.3", before="Epoch {e}/{last}", after="val Loss: 0.3 Acc: 0.9", first=0),
    ),
    Format(
        "timm",
        within_epochs(
            "Train: {e} [{s:4d}/{N} ({part:4.0%})]  Loss: 6.9 (6.9)  Time: 0.2s, 640.1/s  LR: 1.0e-05  Data: 0.01",
            first=0,
            zero=1,
            validation="Test: [{v:4d}/{V}]  Time: 0.2 (0.2)  Loss: 6.9",
        ),
        "epochs",
    ),
    Format(
        "Swin",
        within_epochs(
            "[2024-01-02 10:11:12 swin] (main.py 211): INFO Train: [{e}/{E}][{s}/{N}]\teta 0:"
            "10:11 lr 0.000001\t loss 6.9",
            first=0,
            zero=1,
        ),
    ),
    Format(
        "Ultralytics 8, tqdm (B6)",
        within_epochs(
            "      {e}/{E}      2.51G      1.21      0.52      1.1         16        640:  20"
            "%|██        | {s}/{N} [00:01<00:03,  5.0it/s]",
            every=3,
            validation="                 Class     Images  Instances      Box(P          R      mAP50  m"
            "AP50-95):  20%|██        | {v}/{V} [00:01<00:03]",
        ),
    ),
    Format(
        "Ultralytics 8.3, own bars",
        within_epochs(
            "\x1b[K      {e}/{E}      2.51G      1.21      0.52      1.1         16        64"
            "0: 20% ━━╸───────── {s}/{N} 5.0it/s 0:04<0:16",
            every=3,
            validation="\x1b[K                 Class     Images  Instances      Box(P          R      mA"
            "P50  mAP50-95): 50% ━━━━── {v}/{V} 5.0it/s",
        ),
    ),
    Format(
        "MMEngine, epochs (B7)",
        within_epochs(
            "01/02 10:11:12 - mmengine - INFO - Epoch(train)  [{e}][{s:3d}/{N}]  lr: 1.0e-02 "
            " eta: 0:10:11  time: 0.2  loss: 0.3",
            validation="01/02 10:11:12 - mmengine - INFO - Epoch(val)  [{e}][{v:3d}/{V}]    eta: 0:00:02  time: 0.2",
        ),
        "epochs",
    ),
    Format(
        "MMEngine, iterations",
        whole(
            "01/02 10:11:12 - mmengine - INFO - Iter(train) [{g:6d}/{T}]  lr: 1.0e-02  eta: "
            "0:10:11  time: 0.2  loss: 0.3"
        ),
    ),
    Format(
        "Megatron-LM",
        whole(
            " [2024-01-02 10:11:12] iteration {g:8d}/{T:8d} | consumed samples: {G:12d} | "
            "elapsed time per iteration (ms): "
            "200.1 | learning rate: 1.5E-04 | global batch size:   100 | lm loss: 6.9E+00 |"
        ),
    ),
    Format(
        "fairseq",
        within_epochs(
            "2024-01-02 10:11:12 | INFO | train_inner | epoch {e:03d}:  {s:5d} / {N} loss=6.9"
            ", ppl=99, wps=1000, num_updates={g}, lr=1e-05",
            validation="2024-01-02 10:11:12 | INFO | valid | epoch {e:03d} | valid on 'valid' subset:  {v} / {V}",
        ),
        "epochs",
    ),
    Format("nanoGPT, with --steps", whole("iter {g}: loss 3.21, time 200.12ms, mfu 1.23%"), "steps"),
    Format(
        "DeepSpeed, with --steps",
        whole(
            "[2024-01-02 10:11:12,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={g}, "
            "skipped=0, lr=[0.001], mom=[(0.9, 0.999)]"
        ),
        "steps",
    ),
    Format(
        "torchtitan, with --steps",
        whole(
            "[rank0]:[titan] 2024-01-02 10:11:12,123 - root - INFO - \x1b[31mstep: {g:2d}  "
            "\x1b[32mloss:  7.1  \x1b[33mmemory:  0.5GiB(1.2%)  tps: 1,234"
        ),
        "steps",
    ),
    Format("XGBoost, with --steps", whole("[{g}]\ttrain-rmse:0.27805\teval-rmse:0.3", 1), "steps"),
    Format("CatBoost, with --steps", whole("{g}:\tlearn: 0.5\ttotal: 52ms\tremaining: 1.2s", 1), "steps"),
    Format("[i/N] of each epoch", within_epochs("[{s}/{N}] loss 0.3"), "epochs"),
    Format("[i/N] of the whole, with --progress", whole("[{g}/{T}] loss 0.3"), "label=[#/T"),
    Format("Step 1,000/60,000 (B4)", whole("Step {G:,}/{TT:,} loss 0.3")),
    Format("Step 1_000/60_000 (B4)", whole("Step {G:_}/{TT:_} loss 0.3")),
    Format("epoch 3/50 with other numbers (B9)", best_and_times),
    Format("epoch as JSON", epochs_only('{{"epoch": {e}, "val_loss": 0.2}}'), "epochs"),
    Format("Epoch [3/50], Step [100/600]", within_epochs("Epoch [{e}/{E}], Step [{s}/{N}], Loss: 0.3", every=20)),
    Format("much output", much_output),
)


def at_ticks(lines: Lines, interval_s: float = 1.0) -> Iterator[tuple[float, str]]:
    """Lines as they are read: at the end of the interval in which they were written."""
    for at_s, line in lines:
        yield math.ceil(at_s / interval_s) * interval_s, line
