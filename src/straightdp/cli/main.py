"""The command line: `straightdp VERB`. Torch is imported only by the verbs that compute."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

STUDY = "table1, table2, table5, table6, table7 or controls"
REPORT = STUDY.replace(" or", ",") + ", figure2, figure3, figure4 or figure5"
EPILOG = """\
the usual way through:
  snakemake --profile profiles/local table1       run every missing cell, then the table
                                                  (so table2, table5, table6, table7, controls,
                                                  figure2, figure3, figure4, figure5)
  straightdp status                               what is done, running, failed, missing or stale
  straightdp recover                              after a crash: unlock, and go on
  straightdp rerun --failed                       run the failed cells again, from where they were
  straightdp replay CELL                          recompute a cell's epsilon from its transcript

A CELL is an id that `straightdp status` lists (any part that names just one will do).
A PRESET is a name in config/ or the path of a YAML file.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="straightdp",
        description="Differentially private rectified-flow transformers: the experiment grid.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text)

    def preset(to: argparse.ArgumentParser) -> None:
        to.add_argument("--preset", default="demo", help="name in config/ or a YAML file (demo)")

    def wait(to: argparse.ArgumentParser) -> None:
        to.add_argument(
            "--wait",
            type=float,
            default=0,
            metavar="SECONDS",
            help="wait so long for another process that is at work on it (0: refuse at once)",
        )

    fetch = verb("fetch", "Download a data set; nothing else downloads.")
    fetch.add_argument("name", help="mnist, fashion_mnist or kmnist; letters are drawn")
    fetch.add_argument("--root", type=Path, help="folder (default: $STRAIGHTDP_DATA, else data/)")

    cell = verb("cell", "Run one cell, by id or from a resolved configuration file.")
    cell.add_argument("id", nargs="?", help="the cell's id")
    cell.add_argument("--config", type=Path, help="a config.json as every cell's folder has one")
    wait(cell)
    preset(cell)

    prepare = verb("prepare", "Run one unit that cells share: images, autoencoder, public stage.")
    prepare.add_argument("id", help="the unit's id, as Snakemake prints it")
    wait(prepare)
    preset(prepare)

    evaluate = verb("evaluate", "Compute the metrics of one finished cell's samples.")
    evaluate.add_argument("id", help="the cell's id")
    preset(evaluate)

    report = verb("report", "Write a table or a figure from its evaluated cells.")
    report.add_argument("study", metavar="report", help=REPORT)
    report.add_argument(
        "--partial",
        action="store_true",
        help="write NAME.partial.* from the cells that are there, holes shown as holes",
    )
    preset(report)

    show = verb("show", "Print a table that is written, and where it or a figure lies.")
    show.add_argument("study", metavar="report", help=REPORT)
    preset(show)

    replay = verb("replay", "Recompute epsilon from a cell's transcript alone.")
    replay.add_argument("cell", help="the cell's id, its folder, or a transcript.jsonl")
    preset(replay)

    status = verb("status", "Show a grid of method by budget by seed, and why cells failed.")
    status.add_argument("study", nargs="?", default="table1", help=f"{STUDY}; default table1")
    status.add_argument("--ids", action="store_true", help="list every cell's id and state")
    status.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=10.0,
        metavar="SECONDS",
        help="show it again every so many seconds (10), until Ctrl-C",
    )
    preset(status)

    recover = verb("recover", "After a crash: unlock, and start the last workflow again.")
    recover.add_argument("--dry-run", action="store_true", help="print the command only")

    rerun = verb("rerun", "Run cells again through Snakemake; prints the command it runs.")
    rerun.add_argument("cells", nargs="*", metavar="CELL", help="cells to run from their start")
    rerun.add_argument("--failed", action="store_true", help="every failed or interrupted cell")
    rerun.add_argument("--profile", default="profiles/local", help="Snakemake profile")
    rerun.add_argument("--dry-run", action="store_true", help="print the command only")
    preset(rerun)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from straightdp.cli import verbs

    return getattr(verbs, arguments.verb)(arguments)


def main(argv: list[str] | None = None) -> int:
    """Run one verb; a refusal is one line on standard error and exit code 1 or 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that has no epsilon
    arguments = _parser().parse_args(argv)
    from straightdp.cli.units import Busy
    from straightdp.config import ConfigError
    from straightdp.methods.stopping import EXIT_STATUS, Stopped, listen

    try:
        if arguments.verb in {"cell", "prepare", "evaluate"}:
            listen()
        return _run(arguments)
    except (ConfigError, Busy) as error:
        print(f"straightdp {arguments.verb}: {error}", file=sys.stderr)
        return 2
    except Stopped:
        print(f"straightdp {arguments.verb}: told to leave; goes on from here", file=sys.stderr)
        return EXIT_STATUS
    except KeyboardInterrupt:
        print(f"straightdp {arguments.verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        if os.environ.get("STRAIGHTDP_TRACEBACK"):
            raise
        text = str(error) or "no message"
        print(f"straightdp {arguments.verb}: {type(error).__name__}: {text}", file=sys.stderr)
        return 1
