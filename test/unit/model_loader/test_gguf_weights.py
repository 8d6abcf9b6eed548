"""Models in GGUF: the same config and weights as the checkpoint that the file was made of."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fixtures.gguf_files import ARCHITECTURES, F16, F32, Q8_0, convert, metadata_of, plain, tensors_of, write_gguf
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.checkpoint_sizes import check_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.model_loader.weight_files import open_weight_files
from mysglang.srt.model_loader.weight_update import SAME, first_difference
from mysglang.srt.utils.checkpoint_files import stored_tensors

CPU = torch.device("cpu")

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 5000.0}
FAMILIES = {
    "llama": {"rope_parameters": PLAIN_ROPE},
    "mistral": {},
    "mixtral": {},
    "qwen2": {"rope_parameters": {**PLAIN_ROPE, "rope_type": "linear", "factor": 4.0}},
    "qwen2_moe": {},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {},
    "gemma2": {"query_pre_attn_scalar": 32, "tie_word_embeddings": True},
    "gemma3": {
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": True,
        "layer_types": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
}
"""Sizes that a GGUF file can express: the rest llama.cpp has in its code."""


def config_of(path: Path) -> ModelConfig:
    return ModelConfig.from_path(str(path), dtype="float32")


def values(path: Path, load: LoadConfig | None = None) -> dict[str, Tensor]:
    model = load_model(config_of(path), load or LoadConfig(), CPU, torch.float32)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_model(family: str, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path, **FAMILIES[family])
    path = convert(tmp_path, tmp_path / "model.gguf", F32)
    theirs, ours = config_of(tmp_path), config_of(path)
    for name in SAME:
        assert first_difference(name, getattr(ours, name), getattr(theirs, name)) is None
    assert (ours.context_len, ours.eos_token_ids) == (theirs.context_len, theirs.eos_token_ids)
    check_checkpoint(ours, stored_tensors(path))
    for file in open_weight_files(path):
        for name in file.names:
            header, read = file.header(name), file.read(name)
            assert (header.shape, header.dtype, header.is_meta) == (read.shape, read.dtype, True)
    expected, found = values(tmp_path), values(path)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        # 1 + w in float32 has lost the last digits of w.
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=3e-7 if "gemma" in family else 0)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    make_checkpoint("llama", tmp_path, rope_parameters=PLAIN_ROPE)
    return tmp_path


def test_values_of_sixteen_bits_are_those_of_the_file(llama: Path) -> None:
    found = values(convert(llama, llama / "model.gguf", F16))
    assert all(
        torch.equal(found[name], tensor.half().float()) for name, tensor in values(llama).items() if tensor.ndim > 1
    )
    assert ModelConfig.from_path(str(llama / "model.gguf")).dtype == "float16"


def test_eight_bits_are_within_half_a_step(llama: Path) -> None:
    # Rows of 96 and 136 values: the second is not made of blocks.
    make_checkpoint("llama", llama, rope_parameters=PLAIN_ROPE, intermediate_size=160)
    expected, found = values(llama), values(convert(llama, llama / "model.gguf", Q8_0))
    for name, tensor in expected.items():
        blocks = tensor.reshape(-1, 32) if tensor.ndim > 1 else tensor[:, None]
        largest = blocks.abs().amax(1, keepdim=True)
        difference = (found[name].reshape(blocks.shape) - blocks).abs()
        # The scale itself has 11 bits.
        assert (difference <= largest / 127 * (0.5 + 127 * 2.0**-11)).all()
    assert not torch.equal(found["lm_head.weight"], expected["lm_head.weight"])
    path = llama / "odd.gguf"
    with pytest.raises(ConfigError, match=r"is not made of blocks of Q8_0"):
        stored = {"token_embd.weight": plain(torch.zeros(4, 40))}
        stored["token_embd.weight"] = type(stored["token_embd.weight"])(Q8_0, (4, 40), bytes(4 * 40))
        stored_tensors(write_gguf(path, metadata_of(llama), stored))


def test_parts_and_directories(llama: Path) -> None:
    expected = values(llama)
    metadata, tensors = metadata_of(llama), tensors_of(llama)
    folder = llama / "parts"
    folder.mkdir()
    names = list(tensors)
    for number, some in ((1, names[::2]), (2, names[1::2])):
        stored = {name: plain(tensors[name]) for name in some}
        write_gguf(folder / f"m-{number:05}-of-00002.gguf", metadata if number == 1 else {"split.no": 1}, stored)
    first = folder / "m-00001-of-00002.gguf"
    # A directory with one model and no config.json is that model.
    for path in (first, folder):
        found = values(path)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    with pytest.raises(ConfigError, match=r"give the first one, which ends in -00001-of-00002.gguf"):
        config_of(folder / "m-00002-of-00002.gguf")
    convert(llama, folder / "other.gguf")
    with pytest.raises(ConfigError, match=r"several GGUF models \(m-00001-of-00002.gguf, other.gguf\)"):
        config_of(folder)
    (folder / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(ConfigError, match=r"m-00002-of-00002.gguf is missing"):
        config_of(first)


def test_beside_a_config_the_file_has_the_weights_alone(llama: Path) -> None:
    expected = values(llama)
    convert(llama, llama / "model.gguf", F16)
    found = values(llama, LoadConfig(load_format="gguf"))
    assert torch.equal(found["lm_head.weight"], expected["lm_head.weight"].half().float())
    (llama / "model.safetensors").unlink()
    assert torch.equal(values(llama)["lm_head.weight"], found["lm_head.weight"])


def test_names_are_strict(llama: Path) -> None:
    metadata, tensors = metadata_of(llama), tensors_of(llama)
    stored = {name: plain(tensor) for name, tensor in tensors.items()}
    del stored["blk.1.attn_k.weight"]
    stored["blk.0.attn_sinks.weight"] = plain(torch.zeros(6))
    with pytest.raises(ConfigError) as caught:
        values(write_gguf(llama / "model.gguf", metadata, stored))
    message = str(caught.value)
    assert "lacks tensors for model.layers.1.self_attn.k_proj.weight" in message
    assert "does not know: blk.0.attn_sinks.weight" in message


def test_rotary_scaling_of_llama_3(tmp_path: Path) -> None:
    """A file holds divisors of the frequencies; the parameters that they come from are found again."""
    scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    make_checkpoint("llama", tmp_path, rope_parameters=scaling, head_dim=64)
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made = LlamaConfig(head_dim=64, rope_parameters=scaling)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](made, CPU)
    plain_frequencies = 1 / 500000.0 ** (torch.arange(0, 64, 2).float() / 64)
    metadata, tensors = metadata_of(tmp_path), tensors_of(tmp_path)
    stored = {name: plain(tensor) for name, tensor in tensors.items()}
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, stored | {"rope_freqs.weight": plain(plain_frequencies / scaled)})
    assert config_of(path).decoder == config_of(tmp_path).decoder
    assert values(path).keys() == values(tmp_path).keys()
    write_gguf(path, metadata, stored | {"rope_freqs.weight": plain(torch.linspace(1, 8, 32))})
    with pytest.raises(ConfigError, match="are not those of Llama 3"):
        config_of(path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.architecture": "falcon"}, "the architecture falcon is not supported as GGUF; supported are llama,"),
        ({"general.architecture": 3}, "general.architecture must be a text, not 3"),
        ({"llama.rope.scaling.type": "longrope"}, "rotary positions scaled as 'longrope'"),
        ({"llama.attention.key_length": 32, "llama.attention.value_length": 16}, "keys of 32 and values of 16"),
        ({"llama.attention.head_count_kv": [2, 2, 1]}, r"head_count_kv is \[2, 2, 1\], which is not supported"),
        ({"llama.block_count": "3"}, "num_hidden_layers"),
        ({"llama.embedding_length": 1 << 31}, "hidden_size"),
        ({"tokenizer.ggml.eos_token_id": "</s>"}, "tokenizer.ggml.eos_token_id must be the id of a token, not '</s>'"),
        ({"tokenizer.ggml.eot_token_id": [1, 2]}, r"eot_token_id must be the id of a token, not \[1, 2\]"),
        ({"tokenizer.ggml.bos_token_id": 2.5}, "bos_token_id must be the id of a token, not 2.5"),
        (
            {"llama.expert_count": 2, "llama.expert_used_count": "x"},
            "expert_used_count must be a whole number, not 'x'",
        ),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8, and heads have 16 numbers"),
        ({"llama.rope.scaling.attn_factor": 0.5}, r"rope.scaling.attn_factor is 0.5, and only 1.0 is supported"),
        ({"llama.attention.causal": False}, "llama.attention.causal is False, and only True is supported"),
        ({"split.count": 3}, r"one of 3 parts \(split.count\), and its name says 1; .* end in -00001-of-00003.gguf"),
    ],
)
def test_what_cannot_be_served_is_named(llama: Path, metadata: dict[str, object], words: str) -> None:
    path = convert(llama, llama / "model.gguf", **{key.replace(".", "__"): value for key, value in metadata.items()})
    with pytest.raises(ConfigError, match=words):
        config_of(path)


def test_ends_of_yarn_are_those_of_the_file(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "beta_fast": 20.0, "beta_slow": 2.0}
    make_checkpoint("llama", tmp_path, rope_parameters={**yarn, "original_max_position_embeddings": 64})
    scaling = {"original_context_length": 64, "yarn_beta_fast": 20.0, "yarn_beta_slow": 2.0}
    more = {f"llama__rope__scaling__{key}": value for key, value in scaling.items()}
    path = convert(tmp_path, tmp_path / "model.gguf", **more)
    assert config_of(path).decoder == config_of(tmp_path).decoder
    assert config_of(convert(tmp_path, path, **{**more, "llama__rope__scaling__yarn_beta_fast": 30.0})).decoder != (
        config_of(tmp_path).decoder
    )


@pytest.mark.parametrize(
    ("metadata", "factor"),
    [
        ({"llama__rope__scaling__factor": 4.0}, 4.0),
        ({"llama__rope__scale_linear": 4.0}, 4.0),
        ({"llama__rope__scaling__type": "linear"}, None),
        ({"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 0.0}, None),
        ({"llama__rope__scaling__type": "none", "llama__rope__scaling__factor": 4.0}, None),
    ],
)
def test_a_factor_of_positions_is_linear_without_a_type(
    metadata: dict[str, object], factor: float | None, tmp_path: Path
) -> None:
    """llama.cpp reads these keys so; the second one is of older files."""
    make_checkpoint("llama", tmp_path, rope_parameters=PLAIN_ROPE)
    found = config_of(convert(tmp_path, tmp_path / "model.gguf", **metadata))
    scaling = {} if factor is None else {"rope_type": "linear", "factor": factor}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": PLAIN_ROPE | scaling}))
    expected = config_of(tmp_path)
    assert (found.decoder, found.context_len) == (expected.decoder, expected.context_len)


@pytest.mark.parametrize("family", ["mixtral", "gemma3", "llama"])
def test_the_base_of_positions_is_that_of_llama_cpp_where_a_file_has_none(family: str, tmp_path: Path) -> None:
    """Families have other bases where config.json has none."""
    make_checkpoint(family, tmp_path, **FAMILIES[family])
    metadata, stored = metadata_of(tmp_path), {name: plain(tensor) for name, tensor in tensors_of(tmp_path).items()}
    (base,) = [key for key in metadata if key.endswith("rope.freq_base")]
    without = {key: value for key, value in metadata.items() if key != base}
    told = config_of(write_gguf(tmp_path / "told.gguf", metadata | {base: 10000.0}, stored))
    assert config_of(write_gguf(tmp_path / "untold.gguf", without, stored)).decoder == told.decoder


def test_vectors_are_made_as_the_file_says(llama: Path) -> None:
    for number, mode in ((0, "last"), (1, "mean"), (2, "cls"), (3, "last")):
        path = convert(llama, llama / "model.gguf", llama__pooling_type=number)
        pooling = ModelConfig.from_path(str(path), is_embedding=True).pooling
        assert pooling is not None and pooling.mode == mode
    for number, name in ((4, "rank"), (9, "9")):
        path = convert(llama, llama / "model.gguf", llama__pooling_type=number)
        assert config_of(path).pooling is None
        with pytest.raises(ConfigError, match=f"pooling_type {name} is not supported"):
            ModelConfig.from_path(str(path), is_embedding=True)


def test_the_epsilon_of_norms_must_be_there(llama: Path) -> None:
    """llama.cpp has none for a file without one; models differ in it."""
    metadata = {key: value for key, value in metadata_of(llama).items() if not key.endswith("epsilon")}
    path = write_gguf(llama / "m.gguf", metadata, {name: plain(tensor) for name, tensor in tensors_of(llama).items()})
    with pytest.raises(ConfigError, match=r"lacks the metadata key llama\.attention\.layer_norm_rms_epsilon"):
        config_of(path)


def test_heads_that_do_not_fit_the_rows(llama: Path) -> None:
    """Beside a config.json of its own, the metadata may say something else."""
    convert(llama, llama / "model.gguf", llama__attention__head_count=5)
    with pytest.raises(ConfigError, match=r"q_proj.weight of model.gguf has 96 rows, which are not those of 5 heads"):
        values(llama, LoadConfig(load_format="gguf"))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("head_count", "x", "head_count must be a whole number, not 'x'"),
        ("head_count_kv", 2.0, "head_count_kv must be a whole number, not 2.0"),
        ("head_count_kv", True, "head_count_kv must be a whole number, not True"),
        ("head_count_kv", 0, "head_count_kv must be at least 1, not 0"),
    ],
)
def test_heads_that_are_no_number_beside_a_config(llama: Path, key: str, value: object, words: str) -> None:
    convert(llama, llama / "model.gguf", **{f"llama__attention__{key}": value})
    with pytest.raises(ConfigError, match=words):
        values(llama, LoadConfig(load_format="gguf"))


def test_a_name_of_no_parts(llama: Path) -> None:
    path = convert(llama, llama / "m-00001-of-00000.gguf")
    with pytest.raises(ConfigError, match="a model cannot have 00000 parts"):
        config_of(path)


VALUES = [0, 1, 7, 46, 62, 1 << 31, "x", "", True, 0.0, -1.0, 1e30, float("nan"), float("inf"), [3, 3], [1, 2], ["a"]]


@pytest.mark.promise(49)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_metadata_is_a_clean_error_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(set(ARCHITECTURES.values()))))
    sizes = {"context_length": 64, "block_count": 2, "embedding_length": 32, "feed_forward_length": 32}
    sizes |= {"attention.head_count": 4, "attention.head_count_kv": 2, "expert_count": 2, "expert_used_count": 1}
    sizes |= {"attention.key_length": 8, "attention.value_length": 8, "expert_feed_forward_length": 8}
    sizes |= {"expert_shared_feed_forward_length": 8, "attention.sliding_window": 8, "rope.dimension_count": 8}
    more = ["rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "attention.layer_norm_rms_epsilon"]
    metadata: dict[str, object] = {
        "general.architecture": name,
        **{f"{name}.{key}": size for key, size in sizes.items()},
    }
    keys = [f"{name}.{key}" for key in (*sizes, *more)] + ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id"]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        metadata[key] = data.draw(st.sampled_from(VALUES))
    stored = {"token_embd.weight": plain(torch.ones(8, 32))}
    if data.draw(st.booleans()):
        stored["rope_freqs.weight"] = plain(
            torch.tensor(data.draw(st.sampled_from([[1.0, 8.0], [0.0] * 4, [1.0] * 4])))
        )
    path = write_gguf(tmp_path / "model.gguf", metadata, stored)
    try:
        check_checkpoint(config_of(path), stored_tensors(path))
    except ConfigError as error:
        assert str(error)


def test_the_first_files_of_gemma_2_have_no_window(tmp_path: Path) -> None:
    make_checkpoint("gemma2", tmp_path, **FAMILIES["gemma2"])
    assert config_of(convert(tmp_path, tmp_path / "model.gguf")).hf["sliding_window"] != 4096
    older = convert(tmp_path, tmp_path / "older.gguf", gemma2__attention__sliding_window=None)
    assert config_of(older).hf["sliding_window"] == 4096


WINDOWS = ["full_attention", "sliding_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("metadata", "keys"),
    [
        ({"attention__sliding_window_pattern": 2}, {"sliding_window_pattern": 2}),
        ({"attention__sliding_window_pattern": [False, True, True]}, {"layer_types": WINDOWS}),
        ({"rope__freq_base_swa": 77.0}, {"rope_local_base_freq": 77.0}),
        ({"final_logit_softcapping": 3.0}, {"final_logit_softcapping": 3.0}),
    ],
)
def test_keys_that_newer_files_of_gemma_3_have(
    metadata: dict[str, object], keys: dict[str, object], tmp_path: Path
) -> None:
    make_checkpoint("gemma3", tmp_path, **FAMILIES["gemma3"])
    named = {f"gemma3__{key}": value for key, value in metadata.items()}
    path = convert(tmp_path, tmp_path / "model.gguf", **named)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("layer_types", "rope_parameters", "_sliding_window_pattern"):
        config.pop(key, None)
    older = {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    (tmp_path / "config.json").write_text(json.dumps(config | older | keys))
    assert config_of(path).decoder == config_of(tmp_path).decoder


def test_windows_of_other_layers(tmp_path: Path) -> None:
    make_checkpoint("gemma3", tmp_path, **FAMILIES["gemma3"])
    for pattern, words in (([True, False], "for each of 3 layers"), ("often", "must be a whole number, not 'often'")):
        path = convert(tmp_path, tmp_path / "model.gguf", gemma3__attention__sliding_window_pattern=pattern)
        with pytest.raises(ConfigError, match=rf"gemma3.attention.sliding_window_pattern .*{words}"):
            config_of(path)
