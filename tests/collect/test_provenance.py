"""What of a command and its environment is stored with a recording."""

from __future__ import annotations

import json

from lumos.collect.provenance import COMMAND, command, masked, variables


def test_values_that_are_named_like_secrets_are_masked():
    words = ["train.py", "--api-key", "K", "--token=T", "--lr", "1", "HF_TOKEN=x", "--password", "--verbose", "--monkey", "banana", "--tokens-per-batch", "4"]
    expected = ["train.py", "--api-key", "***", "--token=***", "--lr", "1", "HF_TOKEN=***", "--password", "--verbose", "--monkey", "banana", "--tokens-per-batch", "4"]
    assert masked(words) == expected


def test_the_command_of_lumos_collect_stands_for_that_of_the_process(monkeypatch):
    monkeypatch.setenv(COMMAND, json.dumps(["torchrun", "train.py"]))
    assert command() == ["torchrun", "train.py"]
    monkeypatch.delenv(COMMAND)
    monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python3", "-u", "train.py", "--token", "T"])
    assert command() == ["python", "-u", "train.py", "--token", "***"]
    monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python3", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"])
    monkeypatch.setattr("sys.argv", ["train.py", "--steps", "3"])
    assert command() == ["python", "train.py", "--steps", "3"]


def test_only_variables_of_torch_and_its_devices_are_stored(monkeypatch):
    for name in ("OMP_NUM_THREADS", "NCCL_DEBUG", "TORCH_LOGS", "TORCHELASTIC_RUN_ID", "PYTORCH_API_KEY", "HOME_OF_MINE"):
        monkeypatch.setenv(name, "7")
    found = variables()
    assert (found["OMP_NUM_THREADS"], found["NCCL_DEBUG"], found["TORCH_LOGS"], found["PYTORCH_API_KEY"]) == ("7", "7", "7", "***")
    assert not {"TORCHELASTIC_RUN_ID", "HOME_OF_MINE", "PATH"} & set(found)
