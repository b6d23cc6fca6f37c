# The user's verbs: one target a table.


rule write_table:
    input:
        lambda wildcards: metrics(study_cells(preset, STUDIES[wildcards.study])),
    output:
        f"{TABLES}/{{study,table[0-9]+|controls}}.md",
        f"{TABLES}/{{study}}.csv",
        f"{TABLES}/{{study}}.tex",
    localrule: True
    message:
        "write {wildcards.study}"
    shell:
        RUN + " report {wildcards.study} " + ON


# A target a study: `table1`, `table5`, ... The cells are inputs here too, so that a metrics
# file that was removed is made again although its table still stands.
for study in STUDIES.values():

    rule:
        name:
            study.name
        input:
            f"{TABLES}/{study.name}.md",
            metrics(study_cells(preset, study)),
        localrule: True
