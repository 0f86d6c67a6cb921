"""What each process of a training run on driving scenes does in `test_driving_processes`.

`accelerate launch ... driving_ranks.py RECIPE FOLDER`: takes the gradient of the first batch over all processes, and
the mean of the gradients of all processes' batches taken by this process alone; then trains to the end. Writes both,
the weights and the rows of key frames to FOLDER/RANK.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from zoo.model_inputs import call_model
from zoo.training.loop import Trainer
from zoo.training.recipe import load_recipe
from zoo.training.stopping import StopRequest
from zoo.training.task import loss_parts


def main(recipe: str, folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    loaded = load_recipe(recipe)
    trainer = Trainer(loaded, accelerator, Path(str(loaded.output)))
    task, model, rank = trainer.task, trainer.model, accelerator.process_index
    parameters = list(model.parameters())
    mean = [torch.zeros_like(parameter) for parameter in parameters]
    given = gather_object([task.batch(0, 0)])
    for inputs, targets in given:
        loss = loss_parts(task.loss(call_model(model, inputs), targets))["loss"]
        for total, gradient in zip(mean, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            total += 0 if gradient is None else gradient / len(given)
    inputs, targets = given[rank]
    accelerator.backward(loss_parts(task.loss(call_model(trainer.net, inputs), targets))["loss"])
    together = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
    model.zero_grad()
    rows = [task.order.rows(epoch, index) for epoch in range(2) for index in range(task.steps_per_epoch)]
    with StopRequest(None) as stop:
        result = trainer.run(stop)
    state = {
        "processes": accelerator.num_processes,
        "finished": result.finished,
        "names": [name for name, _ in model.named_parameters()],
        "alone": mean,
        "together": together,
        "weights": [parameter.detach() for parameter in parameters],
        "rows": rows,
        "points": [len(batch.points) for batch, _ in given],
        "boxes": [int(wanted.mask.sum()) for _, wanted in given],
    }
    torch.save(state, folder / f"{rank}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
