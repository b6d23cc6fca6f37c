# The experiment grid as a DAG: public stage -> cells -> metrics -> tables, figures.
#
#   snakemake --profile profiles/local table1
#   snakemake --profile profiles/local table5 table7 --config preset=lab
#   snakemake --profile profiles/local figure2 figure3 figure4 figure5 --config preset=lab
#
# A preset is config/NAME.yaml, or the path of a YAML file. It is checked here, before
# anything runs; the rules below only wire what src/straightdp/studies declares.

include: "workflow/rules/common.smk"
include: "workflow/rules/public.smk"
include: "workflow/rules/cells.smk"
include: "workflow/rules/reports.smk"


onstart:
    hold_driver()
