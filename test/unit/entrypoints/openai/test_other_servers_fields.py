"""Fields that clients of other servers bring to /v1/chat/completions: understood where they have a meaning."""

from typing import Any

import pytest

from fixtures.dialects import CHAT
from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.ignored_fields import FieldLog
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import InvalidRequest

PATH, asked = CHAT.path, CHAT.asked

FIELDS = {
    "OpenAI": """messages model audio frequency_penalty function_call functions logit_bias logprobs
        max_completion_tokens max_tokens metadata modalities n parallel_tool_calls prediction
        presence_penalty prompt_cache_key prompt_cache_retention reasoning_effort response_format
        safety_identifier seed service_tier stop store stream stream_options temperature tool_choice
        tools top_logprobs top_p user verbosity web_search_options""",
    "SGLang": """top_k min_p min_tokens repetition_penalty stop_token_ids stop_regex no_stop_trim ignore_eos
        skip_special_tokens json_schema regex ebnf lora_path session_id session_params custom_params
        custom_logit_processor watermark images_config mm_processor_kwargs rid extra_key cache_salt
        priority custom_labels routed_dp_rank data_parallel_rank disagg_prefill_dp_rank
        bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key return_hidden_states
        return_routed_experts routed_experts_start_len return_cached_tokens_details
        return_spec_tokens_details return_token_ids continue_final_message separate_reasoning
        stream_reasoning chat_template_kwargs reasoning thinking task input_ids
        return_prompt_token_ids return_meta_info input_ids_in_sglext output_ids_in_sglext
        return_sampling_mask max_dynamic_patch min_dynamic_patch video_config use_audio_in_video
        chat_template""",
    "vLLM": """use_beam_search length_penalty include_stop_str_in_output spaces_between_special_tokens
        truncate_prompt_tokens prompt_logprobs allowed_token_ids bad_words echo
        add_generation_prompt add_special_tokens documents structured_outputs guided_json
        guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern
        logits_processors return_tokens_as_token_ids kv_transfer_params vllm_xargs request_id
        include_reasoning thinking_token_budget repetition_detection""",
    "llama.cpp": """n_predict n_probs typical_p mirostat mirostat_tau mirostat_eta dynatemp_range dynatemp_exponent
        xtc_probability xtc_threshold dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
        dry_sequence_breakers repeat_penalty repeat_last_n n_keep n_discard n_indent
        t_max_predict_ms id_slot cache_prompt return_tokens samplers timings_per_token
        return_progress post_sampling_probs response_fields lora grammar min_keep image_data
        reasoning_format parse_tool_calls top_n_sigma""",
}


HONOURED: dict[str, Any] = {
    "add_generation_prompt": False,
    "allowed_token_ids": [5],
    "bad_words": ["x"],
    "echo": True,
    "grammar": "root ::= [a]",
    "guided_choice": ["x"],
    "guided_grammar": "root ::= [a]",
    "guided_json": {"type": "object"},
    "guided_regex": "a",
    "include_stop_str_in_output": True,
    "length_penalty": 0.5,
    "n_predict": 5,
    "repeat_penalty": 1.5,
    "request_id": "x",
    "spaces_between_special_tokens": False,
    "structured_outputs": {"regex": "a"},
    "thinking_token_budget": 5,
    "use_beam_search": True,
}
"""Values that ask for something, of the fields of vLLM and llama.cpp that have a meaning here on some route."""

ROUTES: dict[str, tuple[type[StrictModel], dict[str, Any]]] = {
    "chat": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "Hi"}]}),
    "text": (CompletionRequest, {"prompt": "Hi"}),
}


@pytest.mark.promise(31)
@pytest.mark.parametrize("server", FIELDS)
def test_every_field_of_other_servers_is_known_and_may_ask_for_nothing(server: str) -> None:
    model = ChatCompletionRequest
    known = {*model.model_fields, *model.aliases, *model.idle, *model.unsupported}
    names = FIELDS[server].split()
    assert not set(names) - known
    found = FieldLog().report(PATH)
    nothing = dict.fromkeys(set(names) - {"messages"})
    validate(model, asked(**nothing), found)
    assert found.names == []


@pytest.mark.promise(31)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("field", [name for server in ("vLLM", "llama.cpp") for name in FIELDS[server].split()])
def test_what_a_field_of_vllm_or_llamacpp_asks_for_is_done_refused_or_reported(route: str, field: str) -> None:
    model, base = ROUTES[route]
    found = FieldLog().report(PATH)
    try:
        changed = validate(model, base | {field: HONOURED.get(field, "something")}, found)
    except InvalidRequest as error:
        assert error.param == field
        assert field not in HONOURED or field in model.unsupported
        return
    if found.names:
        assert found.names == [field]
        assert changed == validate(model, base)
    else:
        assert field in HONOURED
        assert changed != validate(model, base)


@pytest.mark.promise(31)
@pytest.mark.parametrize("value", ["", False, [], {}])
def test_what_is_empty_is_never_an_error(value: object) -> None:
    model = ChatCompletionRequest
    names = [name for name in (*model.unsupported, *model.idle) if value is not False or not said(model, name)]
    found = FieldLog().report(PATH)
    validate(model, asked(**dict.fromkeys(names, value)), found)
    assert found.names == []


def said(model: type[ChatCompletionRequest], name: str) -> bool:
    """True if false asks for something there."""
    return True in {**model.unsupported, **model.idle}[name]


async def test_a_model_by_another_name_is_answered_by_the_served_one(caplog: pytest.LogCaptureFixture) -> None:
    names = ("tiny", "default", None, "gpt-4o", "gpt-4o", "llama3:8b", "a\nb")
    async with serve() as served:
        responses = [await served.post(PATH, asked(model=name)) for name in names]
        adapter = await served.post(PATH, asked(model="tiny:mine"))
    assert [(response.status_code, response.json()["model"]) for response in responses] == [(200, "tiny")] * len(names)
    lines = [record.getMessage() for record in caplog.records if "--strict-model-name" in record.getMessage()]
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert (adapter.status_code, adapter.json()["error"]["param"]) == (404, "model")


async def test_a_model_by_another_name_can_be_refused() -> None:
    async with serve(options=AppOptions(served_model_name="tiny", strict_model_name=True)) as served:
        response = await served.post(PATH, asked(model="gpt-4o"))
        assert (response.status_code, response.json()["error"]["param"]) == (404, "model")
        assert "'tiny'" in response.json()["error"]["message"]
        for name in ("tiny", "default", None):
            assert (await served.post(PATH, asked(model=name))).status_code == 200


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_max_tokens_beyond_the_context_are_cut_to_what_fits(field: str) -> None:
    async with serve() as served:
        whole = await CHAT.params(served)
        cut = await CHAT.params(served, **{field: 100_000})
    assert cut.max_new_tokens == whole.max_new_tokens


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"guided_json": {"type": "object"}}, {"json_schema": '{"type":"object"}'}),
        ({"guided_json": '{"type": "object"}'}, {"json_schema": '{"type": "object"}'}),
        ({"json_schema": {"type": "array"}}, {"json_schema": '{"type":"array"}'}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a.b", "c\n"]}, {"regex": "a\\.b|c\\n"}),
        ({"guided_grammar": "root ::= [a]"}, {"ebnf": "root ::= [a]"}),
        ({"grammar": "root ::= [a]"}, {"ebnf": "root ::= [a]"}),
        ({"structured_outputs": {"json": {"type": "array"}}}, {"json_schema": '{"type":"array"}'}),
        ({"structured_outputs": {"json_object": True}}, {"json_schema": '{"type":"object"}'}),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"regex": "yes|no"}),
        ({"structured_outputs": {"regex": "a"}}, {"regex": "a"}),
        ({"structured_outputs": {"grammar": "root ::= [a]"}}, {"ebnf": "root ::= [a]"}),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "array"}}},
            {"json_schema": '{"type":"array"}'},
        ),
    ],
)
async def test_grammars_by_the_names_of_other_servers(fields: dict[str, Any], grammar: dict[str, str]) -> None:
    async with serve() as served:
        params = await CHAT.params(served, **fields)
    kinds = ("json_schema", "regex", "ebnf", "structural_tag")
    assert {kind: getattr(params, kind) for kind in kinds if getattr(params, kind)} == grammar


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"include_stop_str_in_output": True}, "no_stop_trim", True),
        ({"repeat_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"n_predict": 7}, "max_new_tokens", 7),
        ({"stop_token_ids": [600, -1, 5, 1 << 40]}, "stop_token_ids", [5]),
    ],
)
async def test_fields_by_the_names_of_other_servers(fields: dict[str, Any], name: str, value: object) -> None:
    async with serve() as served:
        assert getattr(await CHAT.params(served, **fields), name) == value


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "a", "regex": "b"},
        {"guided_choice": ["a"], "regex": "b"},
        {"guided_choice": []},
        {"n_predict": 3, "max_tokens": 4},
    ],
)
async def test_two_names_that_differ_are_refused(fields: dict[str, Any]) -> None:
    async with serve() as served:
        assert (await served.post(PATH, asked(**fields))).status_code == 400


@pytest.mark.parametrize("value", [True, {"type": "enabled"}, False, {"type": "disabled"}])
@pytest.mark.parametrize("field", ["thinking", "enable_thinking"])
async def test_thinking_is_a_switch_of_the_template(field: str, value: Any) -> None:
    template = "{% if enable_thinking %}on{% else %}off{% endif %}"
    if field == "enable_thinking" and isinstance(value, dict):
        value = value["type"] == "enabled"
    on = value is True or value == {"type": "enabled"}
    async with serve(template=template) as served:
        assert await CHAT.prompt(served, **{field: value}) == ("on" if on else "off")
