"""The canary of a real KV cache: a page that was freed and is read all the same is noticed, on the device itself."""

import numpy as np
import pytest
import torch

from fixtures.executors import start_executor
from fixtures.poisoned_worker import PoisonedWorker
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from fixtures.worker_driver import GREEDY, Driver
from mysglang.srt.configs.choices import KvCacheDtype
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.worker_batch import PLAIN_SAMPLING
from mysglang.srt.model_executor.runner_config import RunnerConfig

PROMPTS = [np.random.default_rng(i).integers(3, VOCAB_SIZE, n).tolist() for i, n in enumerate((40, 17))]


@pytest.mark.promise(24)
@pytest.mark.parametrize(("page_size", "numbers"), [(1, "auto"), (16, "auto"), (16, "fp8_e4m3"), (1, "fp8_e5m2")])
def test_who_reads_a_freed_page_has_no_number(
    tmp_path_factory: pytest.TempPathFactory, page_size: int, numbers: KvCacheDtype
) -> None:
    """One of two rows loses a page while it runs; the other row, and the new content of the page, is sound."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint("qwen3", folder)
    sizes = {"max_total_tokens": 600, "max_running_requests": 6, "page_size": page_size}
    config = RunnerConfig(device="cpu", kv_cache_dtype=numbers, **sizes)
    model = ModelConfig.from_path(str(folder), dtype="float32")
    worker = PoisonedWorker(start_executor(config, model, LoadConfig()))
    # Memory that was not written yet is not read, whatever it contains.
    worker.poison(np.arange(1, worker.capacity.num_pages + 1, dtype=np.int32))
    driver = Driver.start(worker, [GREEDY, GREEDY])
    driver.prefill(PROMPTS)
    assert all(token >= 0 for row in driver.decode(2) for token in row)
    worker.poison(driver.pages.table[0, :1].astype(np.int32))
    tokens = driver.launch(PLAIN_SAMPLING).complete().tokens.tolist()
    assert tokens[0] == -1 and tokens[1] >= 0
