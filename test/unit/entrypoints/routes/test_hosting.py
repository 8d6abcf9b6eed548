"""SageMaker's and Vertex AI's routes: the same answers as by the usual ones, where these services ask."""

import pytest

from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.vertex import VertexRoutes
from mysglang.srt.errors import ConfigError

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def test_sagemaker() -> None:
    async with serve() as served:
        assert (await served.client.get("/ping")).status_code == 200
        here = (await served.post("/invocations", CHAT)).json()
        usual = (await served.post("/v1/chat/completions", CHAT)).json()
        assert here["choices"] == usual["choices"]
        stream = await served.post("/invocations", {**CHAT, "stream": True})
        assert stream.content.endswith(b"data: [DONE]\n\n")


async def test_vertex() -> None:
    options = AppOptions(vertex=VertexRoutes("/v1/endpoints/7:predict", "/alive"), api_keys=("key",))
    async with serve(options=options) as served:
        assert (await served.client.get("/alive")).status_code == 200
        path, headers = "/v1/endpoints/7:predict", {"Authorization": "Bearer key"}
        assert (await served.post(path, {"instances": []})).status_code == 401
        body = {
            "instances": [{"text": "One"}, {"text": "Two"}],
            "parameters": {"sampling_params": {"max_new_tokens": 3, "temperature": 0}},
        }
        answers = (await served.post(path, body, headers=headers)).json()["predictions"]
        assert [answer["text"] for answer in answers] == ["Hello world", "Hello world"]
        assert [request.sampling_params.max_new_tokens for request in served.engine.requests] == [3, 3]
        ids = await served.post(path, {"instances": [{"input_ids": [5, 6]}]}, headers=headers)
        assert len(ids.json()["predictions"]) == 1
        assert (await served.post(path, {"instances": []}, headers=headers)).json() == {"predictions": []}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"instances": [{"text": "a"}, {"input_ids": [1]}]}, "instances.1"),
        ({"instances": [{"text": "a", "image": "b"}]}, "instances.0"),
        ({"instances": [{}]}, "instances.0"),
        ({"instances": [{"input_ids": 5}, {"input_ids": 6}]}, "instances.0.input_ids"),
        ({"instances": [{"text": "a"}, {"text": ["b", "c"]}]}, "instances.1.text"),
        ({"instances": [{"input_ids": [[5]]}]}, "input_ids"),
        ({"instances": [{"text": "a"}], "parameters": {"stream": True}}, "parameters.stream"),
        ({"instances": [{"text": "a"}], "parameters": {"text": "b"}}, "parameters.text"),
        ({"instances": "a"}, "instances"),
    ],
)
async def test_vertex_names_what_is_wrong(body: dict[str, object], param: str) -> None:
    async with serve() as served:
        response = await served.post("/vertex_generate", body)
        assert response.status_code == 400
        assert param in response.json()["error"]["param"]


def test_vertex_says_where_it_asks() -> None:
    assert VertexRoutes.of_environment({}) == VertexRoutes("/vertex_generate", "/ping")
    given = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
    assert VertexRoutes.of_environment(given) == VertexRoutes("/predict", "/health")
    for wrong in ("predict", "/a{b}"):
        with pytest.raises(ConfigError, match="AIP_PREDICT_ROUTE"):
            VertexRoutes.of_environment({"AIP_PREDICT_ROUTE": wrong})
