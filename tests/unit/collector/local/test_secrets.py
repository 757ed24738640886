"""What polls like a secret is masked in a stored command; what only resembles one is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.collector.profiler.secrets import MASK, mask_command, mask_text, names_secret


@pytest.mark.parametrize(
    "name",
    [
        "--password",
        "--db-password",
        "--dbPassword",
        "--api-key",
        "--api_key",
        "--apikey",
        "WANDB_API_KEY",
        "-token",
        "HF_TOKEN",
        "--auth-token",
        "--secret",
        "--client-secret",
        "aws_secret_access_key",
        "--credentials",
        "PGPASSWD",
        "trainer.wandb.api_key",
        "--private-key",
        "--passphrase",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "--tokenizer",
        "--max-tokens",
        "--tokens-per-batch",
        "--sort-key",
        "--key",
        "--author",
        "--pass",
        "--lr",
        "--batch-size",
        "--passes",
        "--monkey",
        "--data",
        "--epochs",
        "--compass",
    ],
)
def test_names_that_are_no_secrets(name: str) -> None:
    assert not names_secret(name)


@pytest.mark.parametrize(
    ("argv", "stored"),
    [
        (["train.py", "--api-key", "abc", "--lr", "0.1"], ["train.py", "--api-key", MASK, "--lr", "0.1"]),
        (["train.py", "--api-key=abc"], ["train.py", f"--api-key={MASK}"]),
        (["train.py", "--password=two words, a 'quote'"], ["train.py", f"--password={MASK}"]),
        # A value may start with one dash; two begin the next option.
        (["train.py", "--token", "-x9"], ["train.py", "--token", MASK]),
        (["train.py", "--token", "--verbose"], ["train.py", "--token", "--verbose"]),
        (["env", "HF_TOKEN=abc", "python"], ["env", f"HF_TOKEN={MASK}", "python"]),
        (["wandb.api_key=abc", "model.width=3"], [f"wandb.api_key={MASK}", "model.width=3"]),
        # Nobody knows whether the value ends at the space: masked too much rather than too little.
        (["sh", "-c", "TOKEN=abc python t.py"], ["sh", "-c", f"TOKEN={MASK}"]),
        (["sh", "-c", "t.py --password abc --lr 1"], ["sh", "-c", f"t.py --password {MASK} --lr 1"]),
        (["sh", "-c", 'export A_SECRET="a b c"; run'], ["sh", "-c", f"export A_SECRET={MASK}; run"]),
        (["--url", "postgres://me:hunter2@db/x"], ["--url", f"postgres://me:{MASK}@db/x"]),
        (["--url=https://ghtoken@host/x"], [f"--url=https://{MASK}@host/x"]),
        (["--header", "Authorization: Bearer abcdef123"], ["--header", f"Authorization: {MASK} {MASK}"]),
        (["--id", "AKIAABCDEFGHIJKLMNOP"], ["--id", MASK]),
        (["--use", "hf_abcdefghijklmnopqrstuv"], ["--use", MASK]),
        (['{"password": "x y", "lr": 1}'], [f'{{"password": {MASK}, "lr": 1}}']),
    ],
)
def test_commands(argv: list[str], stored: list[str]) -> None:
    assert mask_command(argv) == tuple(stored)


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "train.py", "--tokenizer", "bert", "--max-tokens=128", "--lr", "1e-3"],
        ["python", "-m", "torch.distributed.run", "train.py", "--data", "s3://bucket/key=value/part"],
        ["train", "http://host:8080/path", "a:b", "time=12:30"],
    ],
)
def test_ordinary_commands_stay_as_they_are(argv: list[str]) -> None:
    assert mask_command(argv) == tuple(argv)


@given(st.lists(st.text(max_size=40), max_size=6), st.text(alphabet="qwxyz0123", min_size=8, max_size=20))
def test_a_secret_never_gets_through(words: list[str], secret: str) -> None:
    """Whatever stands before it, in each of the usual forms."""
    before = [word for word in words if secret not in word]
    stored = mask_command([*before, "--x", f"--api-key={secret}", f"HF_TOKEN={secret}", "--password", secret])
    assert len(stored) == len(before) + 5
    assert not any(secret in word for word in stored)


@given(st.text(max_size=200))
def test_masking_again_changes_nothing(text: str) -> None:
    once = mask_text(text)
    assert mask_text(once) == once
