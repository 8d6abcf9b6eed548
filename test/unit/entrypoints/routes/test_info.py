"""/server_info, /model_info and the root; and which of the options is told."""

import json
from pathlib import Path
from typing import Any

from fixtures.scripted_engine import serve
from mysglang.srt.args.model import ModelArgs
from mysglang.srt.args.observability import ObservabilityArgs
from mysglang.srt.args.serving import ServingArgs
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.entrypoints.app_options import HEARTBEAT_LIMIT_S, AppOptions
from mysglang.srt.entrypoints.openai.sampling import USUAL, SamplingDefaults
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.version import __version__

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 600,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def options(folder: Path, model: dict[str, Any] | None = None, **serving: Any) -> AppOptions:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    path = str(folder)
    args = ServerArgs(
        model=ModelArgs(model_path=path, tokenizer_path=path, **(model or {})), serving=ServingArgs(**serving)
    )
    return AppOptions.from_args(args, ModelConfig.from_path(path))


async def test_what_the_model_is(tmp_path: Path) -> None:
    async with serve(options=options(tmp_path, served_model_name="llama")) as served:
        info = (await served.client.get("/model_info")).json()
        assert info == (await served.client.get("/get_model_info")).json()
        assert (await served.client.get("/v1/models")).json()["data"][0]["id"] == "llama"
    assert info["model_path"] == info["tokenizer_path"] == str(tmp_path)
    assert info["served_model_name"] == "llama"
    assert info["architectures"] == ["LlamaForCausalLM"]
    assert info["model_type"] == "llama"
    assert info["is_generation"] is True


async def test_the_version_and_the_list_of_models_under_every_spelling() -> None:
    async with serve(options=AppOptions(served_model_name="tiny")) as served:
        version = await served.client.get("/version")
        lists = [await served.client.get(path) for path in ("/v1/models", "/v1/models/")]
    assert (version.status_code, version.json()) == (200, {"version": __version__})
    assert [answer.status_code for answer in lists] == [200, 200]
    assert lists[0].json() == lists[1].json() and lists[0].json()["object"] == "list"


async def test_metrics_that_are_off_name_their_flag() -> None:
    async with serve() as served:
        answer = await served.client.get("/metrics")
    assert answer.status_code == 404
    assert "--enable-metrics" in answer.json()["error"]["message"]


async def test_what_the_server_is_without_its_secrets(tmp_path: Path) -> None:
    headers = {"authorization": "Bearer hush"}
    async with serve(options=options(tmp_path, api_key="hush", admin_api_key="hushhush")) as served:
        response = await served.client.get("/server_info", headers=headers)
        alias = await served.client.get("/get_server_info", headers=headers)
    info = response.json()
    assert alias.json() == info
    assert "hush" not in response.text
    assert info["model_path"] == str(tmp_path)
    assert info["port"] == 30000
    assert info["frontend"] == "python"
    assert info["scheduler_info"]["max_total_num_tokens"] == 1000
    (state,) = info["internal_states"]
    assert state["free_tokens"] == 1000
    assert state["num_running_reqs"] == 0
    assert info["scheduler_info"]["programs"] == state["programs"] != {}


async def test_a_model_without_a_name_of_its_own(tmp_path: Path) -> None:
    async with serve(options=options(tmp_path)) as served:
        assert (await served.client.get("/v1/models")).json()["data"][0]["id"] == str(tmp_path)
        assert (await served.client.get(f"/v1/models/{tmp_path}")).status_code == 200
        assert (await served.client.get("/v1/models/default")).status_code == 200


async def test_root() -> None:
    async with serve() as served:
        assert (await served.client.get("/")).text == "mysglang is running\n"
        head = await served.client.head("/")
    assert (head.status_code, head.content) == (200, b"")


def test_options_of_a_server(tmp_path: Path) -> None:
    usual = options(tmp_path)
    assert usual.loopback_only
    assert usual.serving.defaults == SamplingDefaults({**USUAL, "temperature": 0.6})
    assert usual.heartbeat_limit_s == HEARTBEAT_LIMIT_S
    assert not options(tmp_path, host="0.0.0.0").loopback_only
    assert not options(tmp_path, api_key="k").loopback_only
    assert options(tmp_path, host="0.0.0.0").strangers_may_ask
    assert not options(tmp_path, host="0.0.0.0", api_key="k").strangers_may_ask
    assert not options(tmp_path, host="0.0.0.0", ssl_ca_certs="ca.pem").strangers_may_ask
    assert not usual.strangers_may_ask
    assert options(tmp_path, sampling_defaults="openai").serving.defaults == SamplingDefaults()
    assert options(tmp_path, enable_cache_report=True).serving.report_cached_tokens


def test_a_short_watchdog_makes_health_impatient(tmp_path: Path) -> None:
    options(tmp_path)
    args = ServerArgs(observability=ObservabilityArgs(watchdog_timeout=3.0))
    assert AppOptions.from_args(args, ModelConfig.from_path(str(tmp_path))).heartbeat_limit_s == 3.0


async def test_loads() -> None:
    async with serve() as served:
        everything = (await served.client.get("/v1/loads")).json()
        queues = (await served.client.get("/v1/loads?include=queues")).json()
        refused = await served.client.get("/v1/loads?include=core,lora")
        other_format = await served.client.get("/v1/loads?format=prometheus")
        other_rank = await served.client.get("/v1/loads?dp_rank=1")
        old = (await served.client.get("/get_load")).json()
    [load] = everything["loads"]
    assert (load["num_running_reqs"], load["token_usage"], load["max_running_requests"]) == (0, 0, 8)
    assert load["memory"]["token_capacity"] == 1000
    assert {"weight_gb", "kv_cache_gb", "graph_gb"} < load["memory"].keys()
    assert load["queues"] == {"waiting": 0, "grammar": 0} and load["cache_hit_rate"] == 0
    assert load["speculative"] == {"accept_length": 0, "accept_rate": 0}
    assert (other_format.status_code, other_format.json()["error"]["param"]) == (400, "format")
    assert queues["loads"][0].keys() == {"timestamp", "dp_rank", "queues"}
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "include")
    assert other_rank.status_code == 400
    assert old == [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]
