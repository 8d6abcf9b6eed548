"""Descriptions of fields that mean something else in one class than elsewhere; `field_docs.py` reads them."""

from __future__ import annotations

from collections.abc import Mapping

from mysglang.srt.entrypoints.field_texts import BY_FIELD
from mysglang.srt.sampling.sampling_params import MAX_N

_USUAL = {"temperature": "1", "top_p": "1", "top_k": "all", "min_p": "0", "repetition_penalty": "1"}
"""Field of sampling -> its default where the model's generation_config.json says nothing."""

_FROM_THE_MODEL = ("GenerationRequest", "ResponsesRequest", "MessagesRequest", "Options")
"""Classes in which these fields have their default from that file. On the native route they are constants."""

BY_PLACE: Mapping[str, str] = {
    **{
        f"{kind}.{field}": f"{BY_FIELD[field]} Default: what the model's generation_config.json says, else {usual}."
        for kind in _FROM_THE_MODEL
        for field, usual in _USUAL.items()
    },
    "AbortRequest.rid": "Id of the request to end. Default: none.",
    "AnsweredCall.id": "Id of the call; null in the later pieces of a stream.",
    "AnswerMetadata.weight_version": "Name of the weights that made the answer.",
    "Batch.metadata": "The client's own notes, as they were sent.",
    "Batch.status": "How far the batch has come: validating, in_progress, finalizing, or how it ended.",
    "BatchFault.code": "A word for what is wrong.",
    "ChatCompletion.metadata": "What answered.",
    "ChatCompletionRequest.logprobs": "Whether the answer has log-probabilities. Default: false.",
    "ChatCompletionRequest.max_tokens": "`max_completion_tokens` by its older name.",
    "ChatCompletionRequest.n": f"Answers that are generated, 1 to {MAX_N}. Default: 1.",
    "ChatCompletionRequest.top_logprobs": "Likeliest tokens for each position, 0 to 20. Needs `logprobs`. Default: 0.",
    "ChatChoice.message": "The answer.",
    "ChatLogprobs.content": "The answer's tokens, in order.",
    "ChatMessage.name": "Name of the one who speaks, for chat templates that show it.",
    "Completion.metadata": "What answered.",
    "CompletionLogprobColumns.tokens": "Text of each token.",
    "CompletionRequest.logprobs": "Likeliest tokens that are reported for each position, 0 to 20. Default: none.",
    "CompletionRequest.max_tokens": "Most tokens of the answer; more than fit are cut to what fits. Default: 16.",
    "CompletionRequest.prompt": "A text, a list of texts, the token ids of a prompt, or a list of such.",
    "CohereRerankRequest.return_documents": "Whether the answer has the texts of the documents. Default: false.",
    "CountTokensRequest.thinking": "Whether to think first. Default: what the chat template does by itself.",
    "CreateBatchRequest.metadata": "The client's own notes, at most 16, which the batch shows.",
    "DetokenizeRequest.tokens": "Token ids of a text, or a list of such.",
    "EmbeddingReqInput.text": "The prompt, or a list of prompts.",
    "File.bytes": "Size of the file in bytes.",
    "File.status": "`processed`: the file is there.",
    "FunctionCallOutput.output": "What the call gave, as text.",
    "Generated.text": "The answer's text.",
    "GenerateReqInput.input_ids": "The prompt as token ids, or a list of such prompts.",
    "GenerateReqInput.text": "The prompt, or a list of prompts. One of text, input_ids and input_embeds is sent.",
    "GetWeightsByNameReqInput.name": "Name of the tensor, as the checkpoint has it.",
    "GenerationRequest.stream_options": "What a stream carries beside the answer. No effect without `stream`.",
    "JsonObjectFormat.schema": "JSON schema that the object satisfies. Default: any object.",
    "Load.memory": "Memory by purpose, in GiB.",
    "MessagesRequest.metadata": "The client's own notes. No effect.",
    "ModelCard.id": "The name by which clients ask for the model.",
    "MessageUsage.input_tokens": "Prompt tokens that the prefix cache did not have.",
    "ModelInfo.load_format": "How the weights were loaded.",
    "NamedSchema.strict": "No effect: every answer keeps to its schema.",
    "NativeFinishReason.type": "How the answer ended: by a stop, at its greatest length, or aborted.",
    "OllamaChat.created_at": "When the line was made, in ISO 8601.",
    "OllamaDetails.format": "Format of the checkpoint's files.",
    "OllamaError.error": "What went wrong, in words.",
    "OllamaGenerated.created_at": "When the line was made, in ISO 8601.",
    "OllamaGenerated.response": "The answer's text; in a stream, what is new in it.",
    "OllamaModel.parameters": "Empty: there is no model file that sets any.",
    "OllamaRequest.logprobs": "Whether the answer has log-probabilities. Default: false.",
    "OllamaRequest.stream": "Whether the answer comes in lines as it is made. Default: true.",
    "OllamaRequest.top_logprobs": "Likeliest tokens for each position, 0 to 20. Needs `logprobs`. Default: 0.",
    "OllamaRunning.expires_at": "When the model is unloaded, in ISO 8601: never.",
    "OllamaRunning.size": "Bytes of the weights and the KV cache.",
    "OpenSessionReqInput.capacity_of_str_len": "No effect: the model's context bounds a session.",
    "OpenSessionReqInput.session_id": "Id that the session gets. Default: one is made up.",
    "OllamaRequest.format": "`json` for any JSON, or a JSON schema that the answer satisfies. Default: text.",
    "PoolingRequest.input": "A text, a list of texts, the token ids of a prompt, or a list of such.",
    "QueueLoad.grammar": "Requests that wait for their grammar.",
    "RerankRequest.return_documents": "Whether the answer has the texts of the documents. Default: true.",
    "RankedDocument.meta_info": "How the score was made.",
    "ResponseObject.error": "Why the response failed; null if it did not.",
    "ResponseObject.metadata": "The client's own notes, as they were sent.",
    "ResponseObject.status": "How far the response has come, or how it ended.",
    "ResponseObject.text": "The format that the answer is held to.",
    "ResponsesRequest.metadata": "The client's own notes, which the response shows.",
    "ResponsesRequest.top_logprobs": "Likeliest tokens for each position, 0 to 20. Needs its `include`. Default: 0.",
    "PromptOfResponse.input": "What the user says, or items: messages, calls, results and thoughts.",
    "PromptOfResponse.text": "Which form the answer has. Default: text.",
    "SchemaFormat.strict": "No effect: every answer keeps to its schema.",
    "StructuralTagFormat.format": "The text and its parts, in SGLang's JSON.",
    "ThinkingBlock.thinking": "The thought.",
    "Tokens.tokens": "Token ids; for several texts a list of such.",
    "TokenizeRequest.prompt": "The text, or a list of texts. Either this or `messages` is sent.",
    "ToolChoice.name": "The tool that must be called, for type `tool`.",
    "ToolChoice.type": "Whether tools may (auto), must (any, tool) or must not (none) be called.",
    "ToolUse.input": "The arguments of the call.",
    "ToolUseBlock.input": "The arguments of the call.",
    "UpdateWeightFromDiskReqInput.model_path": "Directory or Hugging Face name of the checkpoint.",
    "VectorMeta.finish_reason": "Why the request ended.",
    "VertexGenerateReqInput.parameters": "Fields that every instance gets, such as `sampling_params`.",
    "WeightSpan.version": "Name of the weights.",
    "_Update.abort_all_requests": "Whether open requests are ended before the change. Default: false.",
    "_Update.weight_version": "The name that the new weights have. Default: the old name.",
    "UpdateWeightVersionReqInput.abort_all_requests": "Whether open requests are ended first. Default: true.",
}
"""Class and field -> what it means there, and in classes derived from it. It counts before a docstring."""
