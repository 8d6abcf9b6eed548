"""Weights of an Engine, changed by the program that it runs in."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mysglang
from fixtures.warm_start import warm_engines
from mysglang import Engine
from mysglang.srt.errors import ConfigError, InvalidRequest

TINY = Path(mysglang.__file__).parent / "assets" / "tiny"
GREEDY = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}


def test_a_saved_engine_is_served_again(tmp_path: Path) -> None:
    """With its tokenizer, from several files, and only with the dtype that it was saved in."""
    prompt = "The capital of France is"
    with warm_engines(), Engine(dtype="float32") as engine:
        first = engine.generate(prompt, GREEDY)
        with pytest.raises(InvalidRequest, match=r"^max_size: "):
            engine.save_sharded_model(str(tmp_path), max_size=0)
        engine.save_sharded_model(str(tmp_path), max_size=1 << 20)
        with pytest.raises(InvalidRequest, match="holds weights already"):
            engine.save_sharded_model(str(tmp_path))
    assert len(list(tmp_path.glob("model-rank-0-part-*.safetensors"))) > 1
    saved = {"model_path": str(tmp_path), "load_format": "sharded_state"}
    with pytest.raises(ConfigError, match="dtype: "):
        Engine(**saved, dtype="bfloat16")
    with pytest.raises(ConfigError, match="tp_size: "):
        Engine(**saved, dtype="float32", tp_size=2)
    with pytest.raises(ConfigError, match=r"^pp_size 2: .*leave pp_size out"):
        Engine(**saved, dtype="float32", pp_size=2)
    with warm_engines(), Engine(**saved, dtype="float32") as engine:
        assert engine.generate(prompt, GREEDY)["output_ids"] == first["output_ids"]


def test_tensors_of_the_program_take_the_place_of_the_model() -> None:
    tensors = load_file(TINY / "model.safetensors")
    with warm_engines(), Engine(dtype="float32") as engine:
        first = engine.generate("The capital of France is", GREEDY)
        sums = engine.weights.checksums()
        halved = [(name, tensor * 0.5 if "norm" not in name else tensor) for name, tensor in tensors.items()]
        assert engine.update_weights_from_tensor(halved, weight_version="half")[0]
        second = engine.generate("The capital of France is", GREEDY)
        assert second["output_ids"] != first["output_ids"]
        assert second["meta_info"]["weight_version"] == "half"
        name = next(name for name in tensors if name.endswith("q_proj.weight"))
        assert torch.allclose(torch.tensor(engine.get_weights_by_name(name, 3)), tensors[name][:3].float() * 0.5)
        assert not engine.update_weights_from_disk("/nowhere")[0]
        assert not engine.update_weights_from_tensor([("nobody", torch.zeros(1))])[0]
        with pytest.raises(InvalidRequest, match="no tensor"):
            engine.get_weights_by_name("nobody")
        assert not engine.destroy_weights_update_group()[0]
        assert not engine.update_weights_from_distributed(["a"], ["float32"], [[1]])[0]
        assert not engine.init_weights_update_group("127.0.0.1", 1, 1, 2, backend="nccl")[0]
        for wrong in (5, tensors, [("x",)], [(name, [1.0])]):
            with pytest.raises(InvalidRequest, match=r"^named_tensors: must be pairs of a name and a tensor"):
                engine.update_weights_from_tensor(wrong)  # type: ignore[arg-type]
        assert engine.update_weights_from_tensor([(name, tensors[name].to_sparse())]) == (True, "1 tensor was changed.")
        with pytest.raises(InvalidRequest, match=r"^load_format: must be one of None, auto, safetensors"):
            engine.update_weights_from_disk(str(TINY), "pt")  # type: ignore[arg-type]
        assert engine.update_weights_from_disk(str(TINY), load_format="safetensors")[0]
        assert engine.weights.checksums() == sums
        assert engine.weights.rename("whole")[0]
        third = engine.generate("The capital of France is", GREEDY)
        assert third["output_ids"] == first["output_ids"]
        assert third["meta_info"]["weight_version"] == "whole"
