# The user's verbs: one target a table, one a figure.


def table_files(study):
    """What a study's table is written into."""
    names = [f"{study.name}.{suffix}" for suffix in ("md", "csv", "tex")]
    names += [f"{study.name}_gradients.csv"] if study.beside else []
    return [f"{TABLES}/{name}" for name in names]


rule write_table:
    input:
        lambda wildcards: metrics(study_cells(preset, STUDIES[wildcards.study])),
    output:
        [f"{TABLES}/{{study,table[0-9]+}}.{suffix}" for suffix in ("md", "csv", "tex")],
    localrule: True
    message:
        "write {wildcards.study}"
    shell:
        RUN + " report {wildcards.study} " + ON


# The controls have Appendix D.3's table beside their own.
rule write_controls:
    input:
        metrics(study_cells(preset, STUDIES["controls"])),
    output:
        table_files(STUDIES["controls"]),
    localrule: True
    message:
        "write controls"
    shell:
        RUN + " report controls " + ON


# A target a study: `table1`, `table5`, ... The cells are inputs here too, so that a metrics
# file that was removed is made again although its table still stands.
for study in STUDIES.values():

    rule:
        name:
            study.name
        input:
            table_files(study),
            metrics(study_cells(preset, study)),
        localrule: True


def drawn_from(figure):
    """What a figure shows: metrics files of cells, or public stages."""
    cells = [cell for _, cell in figure_places(preset, figure)]
    stages = [workspace.folder(unit) for unit in figure_stages(preset, figure).values()]
    files = [f"{folder}/{name}" for folder in stages for name in ("public.pt", "calibration.json")]
    return metrics(cells) + files


# The source files of its looks are inputs of a drawing and of nothing else, so that a changed
# colour draws again and runs no cell.
rule write_figure:
    input:
        lambda wildcards: drawn_from(FIGURES[wildcards.figure]),
        lambda wildcards: [str(path) for path in sources(FIGURES[wildcards.figure])],
    output:
        f"{DRAWN}/{{figure,{'|'.join(FIGURES)}}}.pdf",
        f"{DRAWN}/{{figure}}.png",
    localrule: True
    message:
        "draw {wildcards.figure}"
    shell:
        RUN + " report {wildcards.figure} " + ON


# A target a figure: `figure2`, `figure3`, ...
for figure in FIGURES.values():

    rule:
        name:
            figure.name
        input:
            f"{DRAWN}/{figure.name}.pdf",
            f"{DRAWN}/{figure.name}.png",
            drawn_from(figure),
        localrule: True
