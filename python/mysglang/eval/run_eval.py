"""`python -m mysglang.eval.run_eval --eval-name NAME --data-path FILE`: an evaluation over a running server.

SGLang's `run_eval` and `few_shot_gsm8k`, under their flags, from local files. Prints a table, and one JSON object last.
Wording of the questions and reading of the answers are ours, so scores are comparable among servers that this program
asks, and only roughly with those of other programs.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from mysglang.bench import report
from mysglang.bench.flags import ToolParser, natural, positive, result_file, result_path
from mysglang.bench.http_client import ConnectionFailed, HttpClient
from mysglang.bench.refused import Failed, Refused, run_tool
from mysglang.eval import lang_asking
from mysglang.eval.examples import Example, Task, TaskOptions, Verdict
from mysglang.eval.sandbox import cuts_network
from mysglang.eval.tasks import Gsm8k, HumanEval, Mgsm, Mmlu
from mysglang.srt.environ import API_KEY, BASE_URL
from mysglang.srt.utils.words import counted

PROG = "python -m mysglang.eval.run_eval"
OK = 200
TASKS: Mapping[str, Task] = {"gsm8k": Gsm8k(), "mmlu": Mmlu(), "mgsm": Mgsm(), "humaneval": HumanEval()}
RUNS_CODE = ("humaneval",)

SGLANG_ONLY = """
repeat reasoning-effort thinking-mode return-latency response-answer-regex dataset-path categories
repetition-penalty min-p presence-penalty frequency-penalty chat-template-kwargs
"""


@dataclass(frozen=True, slots=True)
class Answered:
    """One question with its answer."""

    example: Example
    text: str
    verdict: Verdict
    tokens: int
    error: str = ""


def main(argv: Sequence[str], prog: str = PROG) -> int:
    """Runs the evaluation. Returns 0 if every question was answered, right or wrong."""
    options = make_parser(prog).parse_all(argv, SGLANG_ONLY)
    task = TASKS[options.eval_name]
    if options.eval_name in RUNS_CODE and not options.allow_code_execution:
        raise Refused(
            f"{options.eval_name} runs the code that the model writes; give --allow-code-execution if this machine may."
        )
    shots = task.num_shots if options.num_shots is None else options.num_shots
    examples = task.examples(TaskOptions(options.data_path, options.num_examples, shots, options.seed))
    begun = time.perf_counter()
    answered = (
        _ask_by_programs(options, task, examples)
        if options.api == "lang"
        else asyncio.run(_ask_all(options, task, examples))
    )
    figures = result(options.eval_name, answered, time.perf_counter() - begun)
    if options.eval_name in RUNS_CODE:
        figures["network_cut"] = cuts_network()
    if options.save_answers:
        _save(options.save_answers, answered)
    print(table(figures))
    if failed := [each for each in answered if each.error]:
        print(f"{counted(len(failed), 'request')} failed, the first with: {failed[0].error}", file=sys.stderr)
    if options.output_file:
        report.append_json(options.output_file, [figures])
    print(orjson.dumps(figures).decode())
    return int(bool(failed))


def make_parser(prog: str = PROG) -> ToolParser:
    """Returns the options of this tool."""
    parser = ToolParser(
        prog,
        "Ask a running server the questions of a local file, and count the right answers.",
        examples={
            "{prog} --eval-name gsm8k --data-path test.jsonl --num-questions 200": "200 questions of GSM8K.",
            "{prog} --eval-name mmlu --data-path mmlu.csv --num-threads 64": "All of MMLU, 64 questions at a time.",
        },
    )
    part = parser.add_argument_group("questions")
    part.add_argument("--eval-name", choices=list(TASKS), required=True, help="The evaluation.")
    part.add_argument(
        "--data-path", type=Path, required=True, metavar="FILE", help="File or folder with the questions."
    )
    part.add_argument(
        "--num-examples",
        "--num-questions",
        type=positive,
        help="Number of questions, which are drawn by --seed. Default: all.",
    )
    part.add_argument(
        "--num-shots", type=natural, help="Number of solved questions before each one (gsm8k). Default: 5."
    )
    part.add_argument("--seed", type=int, default=0, help="Seed that decides which questions are drawn.")
    part = parser.add_argument_group("answers")
    part.add_argument(
        "--api",
        choices=("chat", "completion", "lang"),
        help="How questions are asked: by one of OpenAI's two APIs, or by a program in the frontend language, which "
        "caches the solved questions first. Default: completion for gsm8k, else chat.",
    )
    part.add_argument(
        "--temperature", type=float, default=0.0, help="Sampling temperature; 0 takes the likeliest token."
    )
    part.add_argument(
        "--top-p", type=float, default=1.0, help="Draw from the likeliest tokens of this total probability."
    )
    part.add_argument(
        "--max-tokens",
        "--max-new-tokens",
        type=positive,
        help="Length of the longest answer, in tokens. Default: by task.",
    )
    part.add_argument(
        "--allow-code-execution", action="store_true", help="Allow running the code that the model writes (humaneval)."
    )
    part = parser.add_argument_group("server")
    part.add_argument("--base-url", "--url", metavar="URL", help=f"Default: ${BASE_URL.name}, else {BASE_URL.default}.")
    part.add_argument("--host", help="Host of the server, instead of --base-url; with --port.")
    part.add_argument("--port", type=positive, help="Port of the server. Default: 30000.")
    part.add_argument("--api-key", metavar="KEY", help=f"Default: ${API_KEY.name}, if it is set.")
    part.add_argument("--model", default="default", help="Name of the model in requests.")
    part.add_argument(
        "--num-threads", "--parallel", type=positive, default=64, help="Number of questions that are sent at once."
    )
    part = parser.add_argument_group("results")
    part.add_argument(
        "--output-file",
        type=result_file,
        default="",
        metavar="FILE",
        help="Append the figures to this file, as a line of JSON.",
    )
    part.add_argument(
        "--save-answers",
        type=result_path,
        metavar="FILE",
        help="Write questions and answers to this file, as JSON lines.",
    )
    return parser


async def _ask_all(options: argparse.Namespace, task: Task, examples: Sequence[Example]) -> list[Answered]:
    gate = asyncio.Semaphore(options.num_threads)
    key = options.api_key or API_KEY.get()
    client = HttpClient(_url(options), {"Authorization": f"Bearer {key}"} if key else {})
    chat = task.chat if options.api is None else options.api == "chat"
    with tqdm(total=len(examples), unit="question", disable=None) as bar:

        async def one(example: Example) -> Answered:
            async with gate:
                text, tokens, error = await _ask(client, _body(options, task, example, chat=chat), chat=chat)
                verdict = Verdict(False, False) if error else await asyncio.to_thread(example.judge, text)
            bar.update()
            return Answered(example, text, verdict, tokens, error)

        return await asyncio.gather(*map(one, examples))


def _ask_by_programs(options: argparse.Namespace, task: Task, examples: Sequence[Example]) -> list[Answered]:
    asked = lang_asking.ask_all(
        _url(options),
        options.api_key or API_KEY.get() or None,
        [example.prompt for example in examples],
        threads=options.num_threads,
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens or task.max_tokens,
        stop=task.stop,
    )
    answered = []
    for example, (text, tokens, error) in tqdm(
        zip(examples, asked, strict=True), total=len(examples), unit="question", disable=None
    ):
        verdict = Verdict(False, False) if error else example.judge(text)
        answered.append(Answered(example, text, verdict, tokens, error))
    return answered


def _url(options: argparse.Namespace) -> str:
    if options.host or options.port:
        if options.base_url:
            raise Refused("--base-url and --host or --port name a server each: give one of the two.")
        return f"http://{options.host or '127.0.0.1'}:{options.port or 30000}"
    url: str = options.base_url or BASE_URL.get()
    return url.rstrip("/").removesuffix("/v1")


def _body(options: argparse.Namespace, task: Task, example: Example, *, chat: bool) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": example.prompt}]} if chat else {"prompt": example.prompt}
    return {
        "model": options.model,
        **asked,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_tokens or task.max_tokens,
        **({"stop": list(task.stop)} if task.stop else {}),
    }


async def _ask(client: HttpClient, body: dict[str, Any], *, chat: bool) -> tuple[str, int, str]:
    """Sends one request. Returns (text, number of tokens, error)."""
    path = "/v1/chat/completions" if chat else "/v1/completions"
    try:
        status, reply = await client.fetch("POST", path, orjson.dumps(body))
    except ConnectionFailed as error:
        return "", 0, str(error)
    if status != OK:
        return "", 0, f"status {status}: {reply[:300].decode(errors='replace')}"
    answer = orjson.loads(reply)
    choice = answer["choices"][0]
    text = choice["message"]["content"] if chat else choice["text"]
    return text or "", int((answer.get("usage") or {}).get("completion_tokens", 0)), ""


def result(name: str, answered: Sequence[Answered], seconds: float) -> dict[str, Any]:
    """Returns the JSON object of a run. A question whose request failed counts as wrong."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for each in answered:
        groups[each.example.group].append(each.verdict.right)
    count = len(answered)
    score = sum(each.verdict.right for each in answered) / count
    return {
        "eval": name,
        "examples": count,
        "score": score,
        "standard_error": math.sqrt(score * (1 - score) / count),
        "invalid": sum(not each.verdict.valid for each in answered) / count,
        "failed": sum(bool(each.error) for each in answered),
        "latency_s": seconds,
        "output_tokens_per_s": sum(each.tokens for each in answered) / seconds,
        "scores": {group: sum(right) / len(right) for group, right in sorted(groups.items())},
    }


def table(figures: Mapping[str, Any]) -> str:
    """Returns the figures in lines; a line for each group if there are several."""
    scores = figures["scores"]
    lines = [f"{group:<32} {score:>7.1%}" for group, score in scores.items()] if len(scores) > 1 else []
    return "\n".join(
        [
            *lines,
            f"Accuracy: {figures['score']:.3f} +- {figures['standard_error']:.3f} ({figures['examples']} questions)",
            f"Invalid: {figures['invalid']:.3f}",
            f"Latency: {figures['latency_s']:.3f} s",
            f"Output throughput: {figures['output_tokens_per_s']:.1f} token/s",
        ]
    )


def _save(path: Path, answered: Sequence[Answered]) -> None:
    lines = [
        {"prompt": each.example.prompt, "answer": each.text, "right": each.verdict.right, "error": each.error}
        for each in answered
    ]
    try:
        path.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror}.") from None


if __name__ == "__main__":
    sys.exit(run_tool(main))
