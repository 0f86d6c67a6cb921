#!/usr/bin/env bash
# From 50 labelled blood cells to a model on the Hugging Face Hub, measured before and after: five commands.
#
#     examples/cells_to_hub.sh BCCD ORG/REPO [NAME] [option of zoo finetune ...]
#
# Writes cells/ and runs/ where it is started. BCCD is as in bccd_cells.py, which also says what a linear classifier
# on the pixels of the same cells gets: python examples/bccd_cells.py probe cells
set -euo pipefail
bccd=$1 repo=$2 name=${3:-pape-vit-t-imagenette}
shift $(($# < 3 ? $# : 3))

python "$(dirname "$0")/bccd_cells.py" crop "$bccd" cells
zoo finetune "$name" --data cells --out runs/cells "$@"
zoo eval local-dir:runs/cells --data cells --split test --out runs/folder.json
# The cells are MIT; the embedded weights to start from are for non-commercial use.
zoo publish runs/cells "$repo" --license cc-by-nc-4.0
zoo eval "hf-hub:$repo" --data cells --split test --out runs/hub.json
