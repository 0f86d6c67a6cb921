"""What `zoo publish` would send to the Hub, without sending it; and the same weights in huggingface_hub's own mixin.

python examples/publish.py [NAME_OR_FOLDER] [ORG/REPO]
"""

import sys
import tempfile

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

import zoo
from zoo import registry


class HubModel(nn.Module, PyTorchModelHubMixin, library_name="pape-zoo", tags=["pape-zoo"]):
    """Any model of this library as a `PyTorchModelHubMixin`: the same config.json, the same names of tensors."""

    def __init__(self, config: dict):
        super().__init__()
        self.model = registry.architecture(config).build(config)

    def forward(self, *inputs):
        return self.model(*inputs)

    def state_dict(self, *args, **kwargs):
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        return self.model.load_state_dict(*args, **kwargs)


def main(model: str = "pape-vit-n-imagenette", repo_id: str = "my-organisation/my-model") -> None:
    # Everything is checked, as before publishing; nothing is sent and no token is needed.
    planned = zoo.publish(model, repo_id, dry_run=True)
    for file in planned.files:
        print(f"{file.size:>10,} bytes  sha256 {file.sha256[:16]}...  {file.path}")
    print(f"to {planned.url}, branch {planned.revision}")

    # Both ways of writing and reading a folder (or a repository) lead to the same model.
    ours = zoo.load(model)
    with tempfile.TemporaryDirectory() as folder:
        zoo.save(ours, f"{folder}/ours")
        mixed = HubModel.from_pretrained(f"{folder}/ours", strict=True)
        mixed.save_pretrained(f"{folder}/mixed")
        back = zoo.load(f"local-dir:{folder}/mixed")
    same = all(torch.equal(back.state_dict()[key], value) for key, value in ours.state_dict().items())
    print(f"through the mixin and back: {'the same weights' if same else 'OTHER WEIGHTS'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
