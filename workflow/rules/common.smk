# The preset, the cells of every study, and the paths they live at.

import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from straightdp.cli.driver import hold as hold_driver
from straightdp.cli.units import Workspace, prerequisites
from straightdp.config import ConfigError, load_preset
from straightdp.reports.figures.draw import sources
from straightdp.studies.cells import (
    autoencoder_unit,
    cell_base,
    cell_extractor,
    cell_public,
    data_unit,
    extractor,
    metrics_name,
)
from straightdp.studies.figures import FIGURES, figure_places, figure_stages
from straightdp.studies.grid import STUDIES, all_cells, study_cells

unknown = set(config) - {"preset"}
if unknown:
    raise WorkflowError(f"--config {', '.join(sorted(unknown))}: unknown; it takes preset=NAME")
if not config.get("preset", "demo"):
    raise WorkflowError("--config preset=: name a preset, or the path of a YAML file")
PRESET = str(config.get("preset", "demo"))
try:
    preset = load_preset(PRESET)
except ConfigError as error:
    raise WorkflowError(str(error))

workspace = Workspace.of(preset)
RESULTS, TABLES = str(workspace.root), f"tables/{preset.name}"
DRAWN = f"figures/{preset.name}"
METRICS = metrics_name(preset)
EXTRACTOR = extractor(preset)
CELLS = all_cells(preset)
PUBLIC = {
    unit.id: unit
    for cell in CELLS.values()
    for unit in [cell_public(cell.config)]
    if unit is not None
}
AUTOENCODERS = {
    unit.id: unit
    for public in PUBLIC.values()
    if "autoencoder" in public.config
    for unit in [autoencoder_unit(public.config["autoencoder"])]
}
PUBLIC_EXTRACTORS = {
    unit.id: unit
    for cell in CELLS.values()
    for unit in [cell_extractor(cell.config)]
    if unit is not None
}

# The threads that torch and numpy may use are the job's; "$OMP_NUM_THREADS" is read again.
# glibc then keeps freed memory, which saves a CPU job a tenth of its time.
MALLOC = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000"
def literal(text):
    """A word of a shell command, as it is: quoted, and no placeholder of Snakemake's."""
    return shlex.quote(text).replace("{", "{{").replace("}", "}}")


RUN = f"OMP_NUM_THREADS={{threads}} {MALLOC} {literal(sys.executable)} -m straightdp"
ON = f"--preset {literal(PRESET)}"
WAIT = " --wait 300"  # for a process that its cluster has given up but that still runs


def drawn_images(public_data):
    """The drawn public images that a configuration reads, if they are drawn."""
    unit = data_unit(public_data)
    return [] if unit is None else [str(workspace.output(unit))]


def metrics(cells):
    """The metrics files of cells."""
    return [f"{RESULTS}/cells/{cell.id}/{METRICS}" for cell in cells]


wildcard_constraints:
    id="[^/]+",
