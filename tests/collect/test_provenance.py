"""What of a command and its environment is stored with a recording."""

from lumos.collect.provenance import STARTED, how_started, masked, told


def test_values_that_are_named_like_secrets_are_masked():
    words = ["--api-key", "K", "--token=T", "--lr", "1", "HF_TOKEN=x", "--password", "--verbose", "--max-tokens", "4"]
    assert masked(words) == ["--api-key", "***", "--token=***", "--lr", "1", "HF_TOKEN=***", "--password", "--verbose", "--max-tokens", "4"]


def test_what_lumos_collect_started_stands_for_the_process(monkeypatch):
    monkeypatch.delenv(STARTED, raising=False)
    monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python3", "-u", "train.py", "--token", "T"])
    assert how_started()["command"] == ["python", "-u", "train.py", "--token", "***"]
    monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python3", "-c", "spawn_main()", "--multiprocessing-fork"])
    monkeypatch.setattr("sys.argv", ["train.py", "--steps", "3"])
    assert how_started()["command"] == ["python", "train.py", "--steps", "3"]
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv(STARTED, told(["torchrun", "train.py"])[STARTED])
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    result = how_started()
    assert (result["command"], result["variables"]["NCCL_DEBUG"]) == (["torchrun", "train.py"], "INFO")


def test_only_variables_of_torch_and_its_devices_are_stored(monkeypatch):
    monkeypatch.delenv(STARTED, raising=False)
    for name in ("OMP_NUM_THREADS", "NCCL_DEBUG", "TORCH_LOGS", "TORCHELASTIC_RUN_ID", "PYTORCH_API_KEY", "HOME_OF_MINE"):
        monkeypatch.setenv(name, "7")
    result = how_started()["variables"]
    assert (result["OMP_NUM_THREADS"], result["NCCL_DEBUG"], result["TORCH_LOGS"], result["PYTORCH_API_KEY"]) == ("7", "7", "7", "***")
    assert not {"TORCHELASTIC_RUN_ID", "HOME_OF_MINE", "PATH"} & set(result)
