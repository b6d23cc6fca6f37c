"""Speed as ratios, all in one run.

    python benchmarks/run.py [--rounds 7]

One thread. Ways are timed in turn, round by round, and compared inside the round.
"""

from __future__ import annotations

import argparse

import torch
from accountant import calibration
from planning import planning
from private_step import gradients, whole_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    gradients(rounds)
    whole_steps(max(3, rounds // 2))
    calibration()
    planning()


if __name__ == "__main__":
    main()
