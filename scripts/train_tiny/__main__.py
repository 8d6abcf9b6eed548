"""Trains the embedded model: `PYTHONPATH=python:scripts python scripts/train_tiny --out FOLDER`.

One command makes the tokenizer, the data, the model and its folder; the same arguments make the same data and schedule.
Seven minutes on one H200; `--toy --steps 5 --rows-per-step 1` on a CPU only proves that everything runs.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import tokenizer
import torch
import train
from model import Shape


def main() -> None:
    usual = train.Plan()
    parser = argparse.ArgumentParser(description="Train the embedded tiny model.")
    parser.add_argument("--out", type=Path, required=True, help="Folder that receives the model.")
    parser.add_argument("--steps", type=int, default=usual.steps)
    parser.add_argument("--rows-per-step", type=int, default=usual.rows_per_step)
    parser.add_argument("--peak-rate", type=float, default=usual.peak_rate)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--processes", type=int, default=usual.processes)
    parser.add_argument(
        "--max-seconds", type=float, default=usual.max_seconds, help="Stop early and export what there is."
    )
    parser.add_argument("--score-every", type=int, default=usual.score_every)
    parser.add_argument("--keep-tokenizer", action="store_true", help="Use the tokenizer that FOLDER already holds.")
    parser.add_argument("--log", type=Path, help="File for the run's figures, as JSON.")
    parser.add_argument(
        "--start-from", type=Path, metavar="FILE", help="Begin with the weights of this safetensors file."
    )
    parser.add_argument("--toy", action="store_true", help="A much smaller model.")
    args = parser.parse_args()
    if not args.keep_tokenizer:
        tokenizer.train(args.out, items=40_000, seed=7)
    plan = train.Plan(
        steps=args.steps, rows_per_step=args.rows_per_step, peak_rate=args.peak_rate, seed=args.seed,
            processes=args.processes,
        max_seconds=args.max_seconds, score_every=args.score_every, warm_up=min(200, args.steps // 10),
    )  # fmt: skip
    shape = replace(Shape(), num_hidden_layers=2, intermediate_size=256) if args.toy else Shape()
    train.run(shape, plan, args.out, "cuda" if torch.cuda.is_available() else "cpu", args.log, args.start_from)


if __name__ == "__main__":
    main()
