"""What `zoo bench` prints."""

from __future__ import annotations

from typing import Any

__all__ = ["how", "known", "number", "print_attention", "print_goals", "print_table", "step_name"]

# Columns of words; others hold numbers.
_WORDS = ("encoding", "kernel", "runs", "model", "tiles")


def print_attention(result: dict[str, Any]) -> None:
    """Tables of `zoo bench attention`, one for each step, and what was refused."""
    for step in ("inference", "train"):
        rows = [row for row in result["rows"] if row[step]]
        if not rows:
            continue
        cells = []
        for row in rows:
            figures, errors = row[step], row[step]["errors"] or {}
            qkv = [errors[name] for name in ("dq", "dk", "dv") if errors.get(name) is not None]
            cells.append(
                [
                    row["workload"],
                    str(row["batch"]),
                    row["encoding"],
                    row["kernel"],
                    figures["runs"],
                    f"{figures['median_ms']:.2f}",
                    f"{figures['p90_ms']:.2f}",
                    f"{figures['ratio']:.2f}",
                    f"{figures['alone_ratio']:.2f}",
                    f"{figures['tflops']:.3g}",
                    number(figures["memory_mib"], ",.0f"),
                    number(figures["memory_ratio"], ".2f"),
                    number(errors.get("output"), ".1e"),
                    number(max(qkv, default=None), ".1e"),
                    number(errors.get("parameters"), ".1e"),
                ]
            )
        heading = [
            "tokens",
            "batch",
            "encoding",
            "kernel",
            "runs",
            "median (ms)",
            "90 % (ms)",
            "time / none",
            "attention alone / none",
            "TFLOP/s",
        ]
        heading += ["memory (MiB)", "memory / none", "error", "of dq, dk, dv", "of weights"]
        manner = f"{result['dtype']}{how(result['compiled'], result['graphs'])}"
        title = (
            f"attention core, {step_name(step == 'train')}, {result['heads']} heads of {result['head_dim']}, {manner}"
        )
        print_table(title, *known(heading, cells), result["environment"])
    _print_refused(result["rows"])


def _print_refused(rows: list[dict[str, Any]]) -> None:
    """One line for each reason: all encodings that a kernel refuses for it, on all workloads alike."""
    encodings: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row["refused"]:
            why = row["refused"].partition("cannot run this call: ")[2] or row["refused"]
            encodings.setdefault((row["kernel"], why, row["workload"]), []).append(row["encoding"])
    workloads: dict[tuple[str, str, str], list[str]] = {}
    for (kernel, why, workload), names in encodings.items():
        workloads.setdefault((kernel, ", ".join(names), why), []).append(workload)
    for (kernel, refused, why), where in workloads.items():
        print(f"not run with {kernel}: {refused} ({', '.join(where)}): {why}")


def print_goals(result: dict[str, Any], otherwise: str = "") -> None:
    """One line for each goal that the run can be held against."""
    for goal in result["goals"]:
        met = "met" if goal["met"] else "not met"
        print(f"goal for pape: {goal['goal']} at most {goal['limit']:.2f}; measured {goal['measured']:.3f}: {met}")
    if not result["goals"] and otherwise:
        print(otherwise)


def how(compiled: bool, graphs: bool) -> str:
    """How calls were run, to end a title with."""
    return (", compiled" if compiled else "") + (", CUDA graphs" if graphs else "")


def step_name(train: bool) -> str:
    """A step in words."""
    return "train step" if train else "inference"


def number(value: float | None, form: str) -> str:
    """A figure in a format; empty where there is none."""
    return "" if value is None else f"{value:{form}}"


def known(heading: list[str], cells: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Leaves out columns without a figure: peak memory is only known on CUDA, for example."""
    kept = [index for index in range(len(heading)) if any(row[index] for row in cells)]
    return [heading[index] for index in kept], [[row[index] for index in kept] for row in cells]


def print_table(title: str, heading: list[str], cells: list[list[str]], made: dict[str, Any]) -> None:
    """A table, and below it the environment of its figures."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, name in enumerate(heading):
        table.add_column(name, justify="left" if index == 0 or name in _WORDS else "right")
    for row in cells:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:  # A file has no width: wide enough that no cell wraps.
        console = Console(width=200)
    console.print(table)
    used = f"CUDA {made['cuda']}" if made["cuda"] else f"{made['threads']} threads"
    print(f"{made['device']}, PyTorch {made['torch']}, {used}, Python {made['python']}")
