"""How kernels are launched: plans, what compiled code is told of kernels, and compiled code on a CUDA device."""

import json
import os
import subprocess
import sys

import pytest
import torch
from interpreted import ROOT

from zoo import coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.encodings.terms import Matrix
from zoo.kernels import fused, launch, plans
from zoo.kernels.fused import fused_attention
from zoo.kernels.launch import Plan, inlines
from zoo.kernels.rows import attention_rows

CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class Kernel:
    """Stands for a kernel and for what Triton compiles of it."""

    arg_names = ("X", "OUT", "N", "BLOCK")

    def __init__(self):
        self.looked_up, self.ran = [], []

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            (self.looked_up if options else self.ran).append((grid, *arguments[2:]))
            return self

        return launch


def test_a_plan_skips_the_look_up_but_not_for_other_alignments():
    kernel, memory = Kernel(), torch.zeros(64, dtype=torch.float16)
    assert memory.data_ptr() % 16 == 0
    plan = Plan(kernel, (3, 2, 1), {"N": 5, "BLOCK": 16}, {"num_warps": 4}, -1)
    looked = ((3, 2, 1), 5, 16)
    plan(memory[1:], memory)
    assert (kernel.looked_up, kernel.ran) == ([looked], [])
    plan(memory, memory[16:])  # The first with aligned addresses: Triton compiles anew.
    assert (kernel.looked_up, kernel.ran) == ([looked] * 2, [])
    plan(memory[8:], memory)
    assert (kernel.looked_up, kernel.ran) == ([looked] * 2, [looked])
    plan(memory, memory[1:])
    assert (kernel.looked_up, kernel.ran) == ([looked] * 3, [looked])


def test_a_kernel_that_cannot_be_kept_is_looked_up_again(monkeypatch):
    class Interpreted(Kernel):
        def __getitem__(self, grid):
            launch = super().__getitem__(grid)
            return lambda *arguments, **options: (launch(*arguments, **options), None)[1]

    kernel, x = Interpreted(), torch.zeros(16)
    plan = Plan(kernel, (1, 1, 1), {"N": 5, "BLOCK": 16}, {"num_warps": 4}, -1)
    plan(x, x)
    plan(x, x)
    assert len(kernel.looked_up) == 2
    kernel = Kernel()
    monkeypatch.setattr(torch.version, "hip", "6.4")  # There Triton compiles for the size of storages too.
    plan = Plan(kernel, (1, 1, 1), {"N": 5, "BLOCK": 16}, {"num_warps": 4}, -1)
    plan(x, x)
    plan(x, x)
    assert len(kernel.looked_up) == 2


# Triton's driver is replaced by the description of a device that need not be there; nothing runs.
TRACE = """
import json, torch, triton
from triton.backends.compiler import GPUTarget
class Driver:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def is_active(self): return True
triton.runtime.driver.set_active(Driver())
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import default_partition
from zoo.kernels import operators

class Traced(Exception):
    pass

def written(function, *inputs):
    found = []
    def partition(graph, inputs, **options):
        for part in default_partition(graph, inputs, **options):  # It fails where an input is written.
            for node in part.graph.nodes:
                if "triton_kernel" in str(node.target):
                    sizes = [node.kwargs["kwargs"][name] for name in ("N", "T") if name in node.kwargs["kwargs"]]
                    grid = node.kwargs["grid"][0][0]
                    symbolic = all(isinstance(size, torch.fx.Node) for size in (*sizes, grid))
                    found.append([node.kwargs["tensors_to_clone"], symbolic])
        raise Traced
    try:
        aot_function(function, fw_compiler=None, partition_fn=partition, dynamic=True)(*inputs)
    except Traced:
        pass
    return found

def content(*shape, dtype=torch.float16):
    return torch.randn(*shape, dtype=dtype).requires_grad_()

B, H, N, D = 5, 4, 37, 16
q, k, v = (content(B, H, N, D) for _ in range(3))
m, t = (content(B, H, N, c, dtype=torch.float32) for c in (3, 2))
keys, values = torch.zeros(1, N, 16, dtype=torch.float16), torch.zeros(1, N, 2)
heads, offsets = torch.ones(H, 5), torch.tensor([0, 5, 9, 37], dtype=torch.int32)
mask = torch.ones(B, N, dtype=torch.bool)
features, weight = content(B, N, 32), content(H, 6, 32)
products, linear = (content(H, *shape, dtype=torch.float32) for shape in ((6, 3), (2, 32)))
run, end = operators.attention, (0.0, False)

def pape(q, k, v, m, t, keys, values, mask):
    return run(q, k, v, m, t, keys, values, None, None, mask, None, 0.25, 1, 3, 0x222222, 2, *end)[0]

def lookhere(q, k, v, values, heads):
    return run(q, k, v, None, None, None, values, None, heads, None, None, 0.25, 3, 0, 0, 2, *end)[0]

def packed(q, k, v, offsets):
    return run(q, k, v, *[None] * 7, offsets, 0.25, 0, 0, 0, 2, *end)[0]

turns, delta = torch.zeros(1, N, 2 * D, dtype=torch.float16), content(H, D, dtype=torch.float32)

def pope(q, k, v, turns, delta, mask):
    return operators.polar_attention(q, k, v, turns, delta, mask, None, D, 0.25, False)[0]

def pope_packed(q, k, v, turns, delta, offsets):
    return operators.polar_attention(q, k, v, turns, delta, None, offsets, D, 0.25, False)[0]

print(json.dumps({
    "pope": written(pope, q, k, v, turns, delta, mask),
    "pope packed": written(pope_packed, *(content(1, H, N, D) for _ in range(3)), turns, delta, offsets),
    "pape": written(pape, q, k, v, m, t, keys, values, mask),
    "lookhere": written(lookhere, q, k, v, values, heads),
    "packed": written(packed, *(content(1, H, N, D) for _ in range(3)), offsets),
    "coefficients": written(lambda *x: operators.coefficients(*x)[:2], features, weight, products, linear),
}))
"""


def run_without_a_device(code):
    """What Python code writes last, as JSON, where kernels are compiled and not interpreted."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
def test_compiled_code_knows_what_kernels_write():
    """PyTorch reads it off the kernels; where it cannot tell, it copies all that they take, and training fails."""
    pytest.importorskip("triton")
    plain = [["OUT", "LSE"], ["STATS"], ["DQ"], ["DK", "DV"]]
    polar = [["KT"], plain[0], ["KT"], plain[1], ["DQ", "QT"], ["DK", "DV", "PARTS"]]
    expected = {
        "pope": polar,
        "pope packed": polar,
        "pape": [*plain[:2], ["DQ", "DA", "DLINEAR", "QC"], plain[3]],
        "lookhere": plain,
        "packed": plain,
        "coefficients": [["OUT", "LINEAR"], ["DZ", "PARTS"]],
    }
    found = run_without_a_device(TRACE)
    assert {name: [names for names, _ in launches] for name, launches in found.items()} == expected
    assert all(symbolic for launches in found.values() for _, symbolic in launches)  # One compilation for all sizes.


# For a device that need not be there, with the scale as compiled code hands it over.
COMPILE = """
import json, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from zoo.kernels.triton_attention import forward
from zoo.kernels.triton_attention_backward import backward_keys, backward_queries
from zoo.kernels.triton_attention_rows import forward_rows
from zoo.kernels.triton_polar import polar_forward, polar_keys, polar_queries

NARROW = ("Q", "K", "V", "OUT", "G", "DQ", "DK", "DV", "QC", "KC", "TURNS", "KT", "QT")
CONSTANTS = {
    "D": 16, "W": 16, "inexact": 3, "HAS_LINEAR": True, "KIND": 1, "AXES": 2, "ORDER": 2, "FIELDS": False,
    "BORDER": 0.0, "HAS_KNOWN": False, "HAS_MASK": False, "CAUSAL": False, "PACKED": False, "BM": 16, "BN": 16,
}

def instructions(kernel):
    constants = {name: CONSTANTS[name] for name in kernel.arg_names if name in CONSTANTS}
    signature = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    for name in kernel.arg_names:
        if name.isupper() and name not in constants and name not in ("H", "M", "N", "ROTARY", "POWERS", "POWERS_HIGH"):
            signature[name] = "*fp16" if name in NARROW else "*fp32"
    signature["scale"] = "fp64"
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): x for name, x in constants.items()}, {})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 1})
    return compiled.asm["ptx"].count(".f64")

kernels = (forward, backward_queries, backward_keys, forward_rows, polar_forward, polar_queries, polar_keys)
print(json.dumps({kernel.__name__: instructions(kernel) for kernel in kernels}))
"""


@pytest.mark.timeout(600)
def test_a_scale_in_float64_leaves_the_rest_in_float32():
    """Inductor hands floats over so: the forward kernels would not compile, the others run in float64."""
    pytest.importorskip("triton")
    found = run_without_a_device(COMPILE)
    attention = {"forward", "backward_queries", "backward_keys", "forward_rows"}
    assert set(found) == attention | {"polar_forward", "polar_queries", "polar_keys"}
    assert all(count <= 4 for count in found.values()), found  # The argument, and its conversion.


def test_powers_are_two_numbers_of_32_bits():
    powers = [*range(-1, 14)]  # Of all columns of four axes.
    terms = {"settings": (0.25, plans.COLUMNS, 4, fused._packed_powers(tuple(powers)), 2, 0.0, False)}
    x = (torch.Size((1, 1, 9, 16)), (144, 144, 16, 1), torch.float16)
    operands = (x, x, x, x, None, x, (torch.Size((1, 9, 4)), (36, 4, 1), torch.float32), *[None] * 4)
    values = plans.forward_plan(-1, operands, (x,), **terms).values
    low, high = values["POWERS"], values["POWERS_HIGH"]
    assert all(-(2**31) <= part < 2**31 for part in (low, high))
    assert [((low | high << 28) >> 4 * i & 15) - 1 for i in range(15)] == powers


class OnCuda(torch.nn.Module):
    """Says whether a call on a CUDA tensor would be inlined."""

    is_cuda, requires_grad = True, False

    def forward(self, x):
        return x + 1 if inlines(self) else x


def test_compiled_code_launches_kernels_and_exported_programs_do_not(monkeypatch):
    monkeypatch.setattr(launch, "_INTERPRETED", False)
    x = torch.zeros(2)
    for setting, expected in ((False, (False, False)), (True, (True, True)), (None, (True, False))):
        monkeypatch.setattr(launch, "_INLINE", setting)
        torch.compiler.reset()
        module = OnCuda()
        assert not module(x).any()
        for module.requires_grad, inlined in zip((False, True), expected, strict=True):
            torch.compiler.reset()
            assert torch.compile(module, backend="eager", fullgraph=True)(x).any().item() is inlined
        with torch.no_grad():
            torch.compiler.reset()
            assert torch.compile(module, backend="eager", fullgraph=True)(x).any().item() is expected[0]
    torch.compiler.reset()
    bounded = torch.compile(lambda x: inlines(OnCuda(), bounded=True), backend="eager", fullgraph=True)
    assert launch._INLINE is None and not bounded(x)
    for strict in (False, True):
        assert not torch.export.export(OnCuda(), (x,), strict=strict).module()(x).any()


def test_compilers_do_not_take_two_outputs_for_one():
    """They would keep one, and copy what kernels wrote to it."""
    from torch._functorch.compile_utils import fx_graph_cse
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    outputs = make_fx(lambda q: (fused.rows_first(q), fused.rows_first(q)), select_decomp_table())
    traced = outputs(torch.zeros(2, 3, 5, 16))
    nodes = fx_graph_cse(traced.graph).nodes
    assert sum("empty" in str(node.target) for node in nodes) == 2


def layer(name, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return CoordinateAttention(128, 2, 2, name).to("cuda", dtype)


class TestOnCuda:
    pytestmark = CUDA

    @pytest.mark.parametrize("inline", [False, True])
    @pytest.mark.parametrize(
        ("name", "training"),
        [("pape", True), ("pape", False), ("pope", True), ("pope", False), ("alibi", True), ("kerple", False)],
    )
    def test_compiled_code_equals_eager_code_at_two_sizes(self, name, training, inline, monkeypatch):
        monkeypatch.setattr(launch, "_INLINE", inline)
        torch.compiler.reset()
        attention = layer(name)
        compiled = torch.compile(attention, fullgraph=True, dynamic=True)
        for index, side in enumerate((9, 12)):  # Not within one tile of tokens, which is compiled for itself.
            coords = coordinates.grid(side, side, device="cuda").with_prefix(1)
            x = torch.randn(2, side * side + 1, 128, device="cuda", dtype=torch.bfloat16)
            found = []
            # Inductor asks whether padding pays, which would bind short samples to a range of sizes.
            padding = torch._inductor.config.patch(shape_padding=False)
            with kernels.trace() as choices, torch._dynamo.config.patch(error_on_recompile=index > 0), padding:
                for function in (attention, compiled):
                    attention.zero_grad()
                    with torch.set_grad_enabled(training):
                        out = function(x, coords)
                    if training:
                        out.float().square().sum().backward()
                    found.append([out.detach(), *(p.grad for p in attention.parameters() if p.grad is not None)])
                    found[-1] = [given.clone() for given in found[-1]]
            assert choices[0].backend == "triton"
            assert len(found[0]) > 1 or not training
            for a, b in zip(*found, strict=True):
                assert b.isfinite().all() and (a - b).norm() <= 0.02 * a.norm() + 1e-3

    def test_compiled_code_launches_kernels_itself(self):
        torch.compiler.reset()
        from torch._inductor.utils import run_and_get_code

        attention, coords = layer("pape"), coordinates.grid(7, 7, device="cuda")
        x = torch.randn(2, 49, 128, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            _, code = run_and_get_code(torch.compile(attention, fullgraph=True), x, coords)
        assert "ops.zoo" not in "".join(code)

    def test_eager_code_follows_alignment_and_shape(self):
        """Neither a slice at an odd offset nor a second shape may run what was compiled for the first."""
        torch.manual_seed(0)
        for tokens in (64, 48, 37):
            memory = torch.randn(3 * 2 * 2 * tokens * 64 + 8, device="cuda").half()
            bias = torch.randn(1, 2, tokens, tokens, device="cuda")
            for offset in (0, 1, 0, 2, 8):
                whole = memory[offset : offset + 3 * 2 * 2 * tokens * 64]
                q, k, v = whole.view(3, 2, 2, tokens, 64)
                for out, term in (
                    (fused_attention(q, k, v, None, scale=0.125), 0.0),
                    (attention_rows(q, k, v, Matrix(bias), scale=0.125), bias.double()),
                ):
                    logits = 0.125 * q.double() @ k.double().transpose(2, 3) + term
                    exact = logits.softmax(dim=-1) @ v.double()
                    assert (out.double() - exact).norm() <= 0.003 * exact.norm()

    @pytest.mark.parametrize("name", ["pape", "pope"])
    def test_eager_code_in_a_cuda_graph(self, name):
        attention, coords = layer(name), coordinates.grid(7, 7, device="cuda")
        x = torch.randn(2, 49, 128, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            attention(x, coords)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = attention(x, coords)
            x.copy_(torch.randn_like(x))
            graph.replay()
            torch.testing.assert_close(out, attention(x, coords))
