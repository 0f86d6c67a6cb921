"""The weights of a run in its processes: whole in each (one process, DDP), or a shard in each (FSDP2)."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from zoo.errors import ConfigError

__all__ = ["Replicas", "Shards", "distribute"]


def distribute(
    accelerator: Any, model: nn.Module, optimizer: torch.optim.Optimizer, ema: ModelEmaV3 | None
) -> Replicas:
    """Spreads a model over the processes in the way that `accelerate launch` was asked for.

    Args:
        accelerator: Of this process.
        model: On its device.
        optimizer: Over its parameters.
        ema: Their moving average, or `None`.

    Raises:
        ConfigError: If accelerate was asked for what is not supported here, such as FSDP1 or DeepSpeed.
    """
    kind = str(accelerator.distributed_type).rpartition(".")[2]
    if accelerator.is_fsdp2:
        return Shards(accelerator, model, optimizer, ema)
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        hint = "add --fsdp_version 2" if kind == "FSDP" else "use --multi_gpu, or --use_fsdp with --fsdp_version 2"
        raise ConfigError(f"accelerate: training with {kind} is not supported; {hint}")
    return Replicas(accelerator, model, optimizer, ema)


class Replicas:
    """Every process has all weights.

    Attributes:
        net: What computes the outputs in training; gradients are averaged over processes.
    """

    sharded = False

    def __init__(
        self, accelerator: Any, model: nn.Module, optimizer: torch.optim.Optimizer, ema: ModelEmaV3 | None
    ) -> None:
        self.accelerator, self.model, self.optimizer, self.ema = accelerator, model, optimizer, ema
        self.net: nn.Module = self._prepare()

    def _prepare(self) -> nn.Module:
        return self.accelerator.prepare_model(self.model)

    def backward(self, loss: Callable[[], Tensor], last: bool) -> Tensor:
        """Computes a loss and adds its gradients; processes exchange them with the last part of a step only.

        Returns:
            The loss, a scalar.
        """
        wait = self.accelerator.num_processes > 1 and not last
        context: AbstractContextManager[Any] = contextlib.nullcontext()
        if wait:
            context = self.accelerator.no_sync(self.net)
        with context:
            value = loss()
            self.accelerator.backward(value)
        return value

    def clip(self, bound: float) -> Tensor:
        """Scales all gradients down to a norm of at most `bound`; returns the norm before."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), bound or math.inf)

    def update_average(self, step: int) -> None:
        """Takes the weights after `step` steps into the moving average, if there is one."""
        if self.ema is not None:
            self.ema.update(self.model, step=step)

    @property
    def smoothed(self) -> nn.Module:
        """The whole model that is evaluated and exported: the moving average, if there is one."""
        return self.model if self.ema is None else self.ema.module

    def state(self) -> dict[str, Any]:
        """Whole weights, moving average and state of the optimiser; all processes call it together."""
        return {
            "model": self.model.state_dict(),
            "ema": None if self.ema is None else self.ema.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave, whether the weights were sharded or not."""
        self.model.load_state_dict(state["model"])
        if self.ema is not None:
            self.ema.module.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])


class Shards(Replicas):
    """Every process has a shard of each parameter, of its moments and of its moving average (FSDP2).

    Weights are gathered in float32 and the network runs under autocast, so that it computes as under DDP: coordinates
    and coefficients of encodings stay in full precision. One whole model is kept on the CPU, and filled where the
    weights are evaluated or exported.
    """

    sharded = True

    def _prepare(self) -> nn.Module:
        self._device = next(self.model.parameters()).device
        if self.ema is None:
            self._whole = copy.deepcopy(self.model).to("cpu")
        else:
            self._whole = self.ema.module.to("cpu")
        plugin = self.accelerator.state.fsdp_plugin
        plugin.mixed_precision_policy = None
        # `accelerate launch` sets this by default, to send weights that the first process alone has. Here all have
        # them, and accelerate (1.15) fails on parameters that the network itself owns, such as a class token.
        plugin.cpu_ram_efficient_loading = False
        if plugin.auto_wrap_policy is None:
            plugin.set_auto_wrap_policy(self.model)
        net, _ = self.accelerator.prepare(self.model, self.optimizer)
        self._average = None
        if self.ema is not None:
            self._average = {key: value.detach().clone() for key, value in self.model.state_dict().items()}
        net.forward = self._mixed(net.forward)
        return net

    def _mixed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward as accelerate makes it for DDP: under autocast, with outputs, and so the loss, in float32."""
        from accelerate.utils import convert_outputs_to_fp32

        if self.accelerator.mixed_precision == "no":
            return forward

        def run(*arguments: Any, **options: Any) -> Any:
            with self.accelerator.autocast():
                return forward(*arguments, **options)

        return convert_outputs_to_fp32(run)

    def clip(self, bound: float) -> Tensor:
        """See `Replicas.clip`."""
        norm: Any = super().clip(bound)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    @torch.no_grad()
    def update_average(self, step: int) -> None:
        """See `Replicas.update_average`."""
        if self.ema is None or self._average is None:
            return
        weight = 1 - self.ema.get_decay(step)
        for key, value in self.model.state_dict().items():
            if value.is_floating_point():
                self._average[key].lerp_(value, weight)
            else:
                self._average[key].copy_(value)

    @property
    def smoothed(self) -> nn.Module:
        """See `Replicas.smoothed`; all processes ask for it together."""
        values = self.model.state_dict() if self._average is None else self._average
        self._whole.load_state_dict(_whole(values))
        return self._whole.to(self._device).eval()

    def state(self) -> dict[str, Any]:
        """See `Replicas.state`."""
        return {
            "model": _whole(self.model.state_dict()),
            "ema": None if self._average is None else _whole(self._average),
            "optimizer": _whole(self.optimizer.state_dict()),
        }

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """See `Replicas.load`."""
        _fill(self.model.state_dict(), state["model"])
        if self._average is not None:
            _fill(self._average, state["ema"])
        given = state["optimizer"]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        moments = {
            index: {key: _shard_like(value, parameters[index]) for key, value in values.items()}
            for index, values in given["state"].items()
        }
        self.optimizer.load_state_dict({**given, "state": moments})


def _whole(tree: Any) -> Any:
    """A tree of tensors on the CPU, with shards gathered from all processes."""

    def gather(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return (leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf).detach().cpu()

    return tree_map(gather, tree)


def _fill(target: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for key, tensor in target.items():
        tensor.copy_(_shard_like(values[key], tensor))


def _shard_like(value: Any, tensor: Any) -> Any:
    """The shard of a whole tensor that this process has of `tensor`, where that is sharded and of the same shape."""
    if not isinstance(value, Tensor) or not hasattr(tensor, "device_mesh") or value.shape != tensor.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    # All processes have read the same file, so nothing need be sent.
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
