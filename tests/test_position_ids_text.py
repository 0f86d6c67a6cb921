"""Text in rows, of a fixed width or up to a newline, against a walk from token to token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo import DataError
from zoo.position_ids import fixed_rows, newline_rows

quick = settings(max_examples=20, deadline=None, derandomize=True)


@quick
@given(length=st.integers(1, 60), width=st.integers(1, 20), start=st.integers(0, 50))
def test_fixed_rows(length, width, start):
    coords = fixed_rows(length, width, start=start)
    assert coords.values[0].int().tolist() == [list(divmod(i, width)) for i in range(start, start + length)]
    assert coords.bounds == coords.measured_bounds() and coords.integral
    assert not fixed_rows(300, 1).integral and fixed_rows(2, 1, dtype=torch.float64).values.dtype == torch.float64


def walk(flags):
    """Row and column of every token, one by one."""
    row = column = 0
    for flag in flags:
        yield [row, column]
        row, column = (row + 1, 0) if flag else (row, column + 1)


@quick
@given(
    rows=st.lists(st.lists(st.booleans(), max_size=9), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
)
def test_newline_rows(rows, side):
    longest = max(len(row) for row in rows)
    flags, mask = (torch.zeros(len(rows), longest, dtype=torch.bool) for _ in range(2))
    for i, row in enumerate(rows):
        where = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
        flags[i, where], mask[i, where] = torch.tensor(row, dtype=torch.bool), True
    flags |= ~mask  # Padding may look like anything.
    padded = newline_rows(flags, mask=mask)
    assert torch.equal(padded.positioned, mask) and not padded.values[~mask].any()
    lengths = torch.tensor([0, *(len(row) for row in rows)])
    packed = newline_rows(flags[mask], cu_seqlens=lengths.cumsum(0).int())
    expected = [token for row in rows for token in walk(row)]
    assert padded.values[mask].int().tolist() == packed.values.int().tolist() == expected


def test_newlines_between_left_out_tokens():
    flags = torch.tensor([[False, True, True, False, False]])
    mask = torch.tensor([[True, True, False, True, True]])
    assert newline_rows(flags, mask=mask).values[0, mask[0]].int().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert newline_rows(flags, dtype=torch.float64).values.dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fixed_rows(0, 2), "length must be a whole number, 1 or more"),
        (lambda: fixed_rows(3, 2, start=-1), "start must be"),
        (lambda: fixed_rows(3, 2, start=2**27), "not told apart"),
        (lambda: fixed_rows(3, 2, start=10**30, dtype=torch.float64), "not told apart"),
        (lambda: newline_rows([True]), r"bool tensor \(B, N\), got \[True\]"),
        (lambda: newline_rows(torch.zeros(3) > 0, cu_seqlens=[0, 3]), "cu_seqlens must be a vector"),
        (lambda: newline_rows(torch.zeros(3) > 0, cu_seqlens=torch.tensor([0, -1, 3])), "must rise from 0"),
        (lambda: newline_rows(torch.zeros(3) > 0, cu_seqlens=torch.tensor([0, 2])), "number of tokens, 3"),
        (lambda: newline_rows(torch.zeros(3, dtype=torch.bool)), r"bool tensor \(B, N\), got torch.bool \(3,\)"),
        (lambda: newline_rows(torch.zeros(1, 3)), r"got torch.float32 \(1, 3\)"),
        (lambda: newline_rows(torch.zeros(1, 3) > 0, mask=torch.ones(1, 2) > 0), "mask must be bool"),
    ],
)
def test_bad_rows_are_explained(make, message):
    with pytest.raises(DataError, match=message):
        make()
