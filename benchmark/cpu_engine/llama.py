"""llama.cpp's side of the benchmark. Runs under an interpreter that has llama-cpp-python, gguf and numpy, and no torch.

    python llama.py FOLDER THREADS [BF16 | F16 | Q8_0]

Makes FOLDER/model-FORMAT.gguf from FOLDER/config.json with random weights, unless it is there. Then reads lines `decode
ROWS CONTEXT STEPS` and `prefill LENGTH`, and answers each with seconds: of each decode step, or of the prompt.
"""

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as llama
import numpy as np
from gguf.quants import quantize

MAX_ROWS, MAX_CONTEXT = 8, 1024
STD = 0.02
FILE_TYPES = {
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}
"""Formats of matrices, and the file types that say so."""


def write_gguf(config: dict[str, Any], path: Path, number_format: str) -> None:
    """The shape with matrices in one of `FILE_TYPES`; norms in float32, as llama.cpp's own converter has them. There is
    no vocabulary.
    """
    writer = gguf.GGUFWriter(str(path), config["model_type"])
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(FILE_TYPES[number_format])
    writer.add_tokenizer_model("none")
    draw = np.random.default_rng(0)
    dtype = gguf.GGMLQuantizationType[number_format]

    def matrix(name: str, rows: int, columns: int) -> None:
        values = draw.standard_normal((rows, columns), dtype=np.float32) * STD
        writer.add_tensor(name, quantize(values, dtype), raw_dtype=dtype)

    def norm(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, dtype=np.float32))

    matrix("token_embd.weight", config["vocab_size"], hidden)
    norm("output_norm.weight", hidden)
    for layer in range(config["num_hidden_layers"]):
        block = f"blk.{layer}"
        for name, size in (
            ("attn_norm", hidden),
            ("ffn_norm", hidden),
            ("attn_q_norm", head_dim),
            ("attn_k_norm", head_dim),
        ):
            norm(f"{block}.{name}.weight", size)
        matrix(f"{block}.attn_q.weight", heads * head_dim, hidden)
        matrix(f"{block}.attn_k.weight", kv_heads * head_dim, hidden)
        matrix(f"{block}.attn_v.weight", kv_heads * head_dim, hidden)
        matrix(f"{block}.attn_output.weight", hidden, heads * head_dim)
        matrix(f"{block}.ffn_gate.weight", inner, hidden)
        matrix(f"{block}.ffn_up.weight", inner, hidden)
        matrix(f"{block}.ffn_down.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    """One model and one context."""

    def __init__(self, path: Path, threads: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        llama.llama_backend_init()
        self._log = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(self._log, None)
        self._model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        options = llama.llama_context_default_params()
        options.n_ctx = MAX_ROWS * MAX_CONTEXT
        options.n_batch = options.n_ubatch = MAX_CONTEXT
        options.n_seq_max = MAX_ROWS
        options.n_threads = options.n_threads_batch = threads
        self._context = llama.llama_init_from_model(self._model, options)
        self._batch = llama.llama_batch_init(MAX_CONTEXT, 0, MAX_ROWS)

    def decode(self, rows: int, context: int, steps: int) -> list[float]:
        """Seconds of each step, the choice of the most likely token included."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        tokens = self._run([(at % 1000, at, row) for row in range(rows) for at in range(context)])
        times = []
        for position in range(context, context + steps):
            start = time.perf_counter()
            tokens = self._run([(token, position, row) for row, token in enumerate(tokens)])
            times.append(time.perf_counter() - start)
        return times

    def prefill(self, length: int) -> float:
        """Seconds until the first token is chosen."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        tokens = [(at % 1000, at, 0) for at in range(length)]
        start = time.perf_counter()
        self._run(tokens)
        return time.perf_counter() - start

    def _run(self, tokens: list[tuple[int, int, int]]) -> list[int]:
        """(token, position, row) each, row by row. The most likely next token of each row."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        wanted = [i for i, token in enumerate(tokens) if i + 1 == len(tokens) or tokens[i + 1][2] != token[2]]
        for i, (token, position, row) in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
            batch.logits[i] = i in wanted
        if llama.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        return [int(self._logits(i).argmax()) for i in wanted]

    def _logits(self, i: int) -> np.ndarray:
        pointer = llama.llama_get_logits_ith(self._context, i)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self._vocab_size,))


def main() -> None:
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    number_format = sys.argv[3] if len(sys.argv) > 3 else "BF16"
    config, path = json.loads((folder / "config.json").read_text()), folder / f"model-{number_format}.gguf"
    if not path.exists():
        write_gguf(config, path, number_format)
    model = Llama(path, threads, config["vocab_size"])
    print(json.dumps({"version": llama.__version__}), flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        print(json.dumps(getattr(model, what)(*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
