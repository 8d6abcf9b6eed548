"""A program in the frontend language: two experts answer at the same time, and the model decides between them.

python -m mysglang.launch_server            # in another terminal
python examples/frontend_language.py
"""

import mysglang as sgl


@sgl.function
def debate(s: sgl.ProgramState, question: str) -> None:
    s += sgl.user(question)
    experts = s.fork(2)
    experts += sgl.assistant(sgl.gen("answer", max_tokens=24))
    experts.join()
    with s.assistant():
        for i, answer in enumerate(s["answer"]):
            s += f"Expert {i + 1}: {answer}\n"
        s += "The better answer is that of expert " + sgl.select("winner", ["1", "2"])


def main(url: str) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(url))
    state = debate.run("What is the capital of France?", temperature=0.7)
    print(state.text())
    print("The winner:", state["answer"][int(state["winner"]) - 1])


if __name__ == "__main__":
    main("http://127.0.0.1:30000")
