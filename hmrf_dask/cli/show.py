"""The pages that a person reads in the terminal after a command."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from hmrf_dask.cli.group import one_line
from hmrf_dask.cli.show_plan import plan_lines
from hmrf_dask.cli.show_questions import answer_lines, asked_lines, exchange_lines, journal_line
from hmrf_dask.cli.terminal import (
    bold,
    cut_to_terminal,
    file_list,
    folded,
    next_steps,
    own_name,
    relative,
    section,
    wrapped,
)
from hmrf_dask.errors import HmrfError, counted, in_words, rows_moved
from hmrf_dask.progress import bytes_in_words

if TYPE_CHECKING:
    from hmrf_dask.jobs.changes import Difference
    from hmrf_dask.jobs.check import Findings
    from hmrf_dask.jobs.demo import DemoResult
    from hmrf_dask.jobs.edit import Edited, Renamed
    from hmrf_dask.jobs.evaluate_files import Agreement
    from hmrf_dask.jobs.export import Exported
    from hmrf_dask.jobs.fit_files import FitResult, Prediction
    from hmrf_dask.jobs.namers import Named
    from hmrf_dask.jobs.new_job import NewJob
    from hmrf_dask.jobs.places import Report
    from hmrf_dask.jobs.released import Classified
    from hmrf_dask.jobs.report import Written
    from hmrf_dask.jobs.suggest import Suggestion

MOST = 20  # clusters shown
WHAT_J_IS = (
    "  (J: all distances, and what violated pairs cost; smaller is better, of the same rows)"
)


def show(result: Any) -> None:
    """Print the page of what a command of `hmrf_dask.jobs` returned."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in _PAGES[type(result).__name__](result):
        click.echo(folded(line, width) if width else line)


def _new_job(made: NewJob) -> Iterator[str]:
    """Say what was found of documents, which files were made, and what to type next."""
    job, manifest, output = map(relative, (made.job, made.manifest, made.output))
    yield one_line(made.remark.removesuffix(f": {made.job}").replace(made.job, job))
    if columns := made.columns:
        yield f"  id    {one_line(columns['id'])}"
        yield f"  text  {one_line(', '.join(columns['text']))}"
        if columns["keep"]:
            yield f"  keep  {one_line(', '.join(columns['keep']))}"
        if columns["other"]:
            yield f"  not used: {one_line(', '.join(columns['other'][:MOST]))}"
        if columns["keep"] or columns["other"]:
            yield (
                "other columns are meant? name them by --id, --text and --keep, or in the manifest"
            )
    yield from file_list({"manifest": manifest, "job": job})
    yield from next_steps(
        (f"check {shlex.quote(job)}", "reads a sample; writes nothing"),
        (f"run {shlex.quote(job)}", "makes the clusters"),
        (f"label {shlex.quote(output)}", "asks you about some, in a browser"),
    )


def _demo(result: DemoResult) -> Iterator[str]:
    yield (
        f"{bold(f'{result.n_documents} docstrings')} of numpy, scipy and scikit-learn in "
        f"{len(result.clusters)} clusters\n{result.n_words} words, {result.n_answers} answers\n"
    )
    yield bold("cluster      size  share  mostly                top words")
    for cluster in result.clusters:
        yield cut_to_terminal(
            f"{cluster.cluster:7} {cluster.size:9,} {cluster.share:6.0%}  {cluster.mostly:20}  "
            f"{' '.join(cluster.top_words)}"
        )
    unasked = result.n_documents - result.n_asked_documents
    everywhere, elsewhere = f"all {result.n_documents} documents", f"the {unasked} nobody was"
    yield "\nHow well clusters agree with the subpackages that docstrings are from (NMI):"
    yield "1 where both are the same, 0 where they have nothing to do with each other"
    yield bold(f"{'':24}  {everywhere}  {elsewhere} asked about")
    few, random, chosen = result.n_questions, result.random_pairs, result.chosen_questions
    for title, of_all, of_unasked in (
        ("without answers", result.nmi_without_answers, result.nmi_unasked_without_answers),
        (f"{few} random pairs", random.nmi, random.nmi_unasked),
        (f"{few} chosen questions", chosen.nmi, chosen.nmi_unasked),
        (f"{result.n_answers} answers", result.nmi_with_answers, result.nmi_unasked_with_answers),
    ):
        yield f"{title:24}  {of_all:<{len(everywhere)}.3f}  {of_unasked:.3f}"
    yield (
        f"\n{few} answers to chosen questions (which of these groups?) are "
        f"{chosen.n_pairs} pairs,\nthose to random ones {random.n_pairs}. So few move little: "
        "what differs by .03 may be luck."
    )
    yield _violations(result.violations, result.n_answers)
    iterations = counted(result.n_iterations, "iteration")
    yield f"{iterations} ({result.stop_reason}), {result.seconds:.1f} s\n"
    files = result.files
    yield from file_list({name: path for name, path in files.items() if name != "report"})
    yield f"\n{bold('Next')}\n  # change an answer in the pairs, and fit again"
    yield f"  {own_name()} fit {files['rows']} -k {len(result.clusters)} --fresh \\"
    yield f"    --pairs {files['pairs']} --run-dir {files['run']}-mine"
    yield f"  # documents of yours\n  {own_name()} init tickets.csv\n"
    yield _report_at(files["report"], files["run"])


def _fit(result: FitResult) -> Iterator[str]:
    documents, clusters = counted(result.n_documents, "document"), len(result.sizes)
    yield f"{bold(documents)} in {counted(clusters, 'cluster')}, sizes:"
    yield wrapped(" ".join(map(str, result.sizes)))
    if result.n_outliers:
        yield f"{counted(result.n_outliers, 'document')} of no cluster (-1)"
    yield _violations(result.violations, result.n_pairs)
    if result.suspect_answers:
        suspects = counted(len(result.suspect_answers), "answer")
        yield f"{suspects} more likely wrong than right (--json lists them)"
    iterations = counted(result.n_iterations, "iteration")
    yield f"J = {result.objective:.6g} after {iterations} ({result.stop_reason})"
    yield WHAT_J_IS
    if result.start_reason:
        yield f"start: {result.start_reason}"
    yield from file_list({name: path for name, path in result.files.items() if name != "report"})
    yield _report_at(result.files["report"], result.files["run"])


def _prediction(result: Prediction) -> Iterator[str]:
    documents, clusters = counted(result.n_documents, "document"), len(result.clusters)
    yield f"{bold(documents)} in {counted(clusters, 'cluster')}, cluster: size"
    yield wrapped(", ".join(f"{one['cluster']}: {one['size']}" for one in result.clusters))
    yield from file_list(result.files)


def _agreement(result: Agreement) -> Iterator[str]:
    compared = bold(f"{result.n_compared} of {result.n_documents} documents")
    yield f"{compared} have a known class"
    yield f"NMI            {result.nmi:.4f}"
    if result.nmi_unasked is not None:
        unasked = counted(result.n_unasked or 0, "document")
        yield f"  unasked      {result.nmi_unasked:.4f} ({unasked})"
    yield f"pairwise F     {result.pairwise_f:.4f}"
    yield f"adjusted Rand  {result.adjusted_rand:.4f}"
    yield f"homogeneity    {result.homogeneity:.4f}"
    yield f"completeness   {result.completeness:.4f}"
    yield "1 is equal to the known classes, 0 unrelated to them"


def _violations(violations: dict[str, int], n_pairs: int) -> str:
    must, cannot = violations["must_link"], violations["cannot_link"]
    return (
        f"violated pairs: {must + cannot} of {n_pairs} ({counted(must, 'must-link')}, "
        f"{counted(cannot, 'cannot-link')})"
    )


_FORMATS = ("jsonl", "parquet", "csv", "text", "builtin")  # of files; segments are of other sources


def _findings(findings: Findings) -> Iterator[str]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in findings.formats.items())
    size = f", {bytes_in_words(findings.bytes)}" if findings.bytes else ""
    of_files = any(kind.partition(".")[0] in _FORMATS for kind in findings.formats)
    unit = "file" if of_files else "segment"
    yield f"{bold(counted(findings.files, unit))} ({kinds}){size}"
    opened = f"a sample, {counted(findings.files_read, unit)} opened"
    read = "all read" if findings.complete else opened
    yield f"{bold(counted(findings.documents, 'document'))} ({read})"
    yield from _documents_found(findings)
    bad, repeated = findings.bad_records, findings.duplicate_ids
    yield from section(counted(bad, "bad record"), _bad_records(findings), bad)
    title = counted(repeated, "id that comes twice", "ids that come twice")
    yield from section(title, findings.first_duplicate_ids, repeated)
    if answers := findings.answers:
        yield (
            f"{bold(counted(answers.must_links + answers.cannot_links, 'answer'))} "
            f"({counted(answers.must_links, 'must-link')}, "
            f"{counted(answers.cannot_links, 'cannot-link')}) about "
            f"{counted(answers.documents, 'document')}, {answers.documents_found} of them read"
        )
    yield from section("Problems", findings.problems, len(findings.problems))
    yield from section("Remarks", findings.remarks, len(findings.remarks))
    if findings.output is not None:
        yield f"{bold('output')} {relative(findings.output)}"
    if not findings.problems:
        yield "nothing found that would stop a run"


def _suggestion(suggestion: Suggestion) -> Iterator[str]:
    """Show what each K brings; a star stands where the recommended range is."""
    sample = f"{suggestion.n_sample:,} of {counted(suggestion.n_documents, 'document')}"
    yield f"{bold(sample)}, {counted(suggestion.n_answers, 'answer')} about them"
    yield bold(
        f"  {'K':>4}  below chance  own cluster  silhouette  stability  split  joined  likely"
    )
    for row in suggestion.tried:
        inside = suggestion.least <= row["n_clusters"] <= suggestion.largest
        yield (
            f"{'*' if inside and suggestion.recommended else ' '} {row['n_clusters']:4}  "
            f"{row['fall']:12.2%}  {row['own']:11.1%}  {row['silhouette']:10.3f}  "
            f"{row['stability']:9.3f}  {row['split']:5.1f}  {row['joined']:6.1f}  "
            f"{row['likely']:6.1%}"
        )
    said = f"K = {suggestion.n_clusters}" if suggestion.recommended else "no recommendation"
    yield f"{bold(said)}: {suggestion.doubt}"


def _documents_found(findings: Findings) -> Iterator[str]:
    for document in findings.first_documents:
        yield f"  {one_line(document['id'])}  {one_line(document['text'])}"
    if findings.lengths.get("longest"):
        lengths, share = findings.lengths, findings.ascii_share
        rounded = f"{share:.1%}" if share < 0.9995 else "nearly all"
        only_ascii = {0.0: "none", 1.0: "all"}.get(share, rounded)
        long = counted(int(lengths["longest"]), "character")
        if lengths["shortest"] < lengths["longest"]:
            long = f"{lengths['shortest']} to {long}, half of them at most {lengths['median']:,.0f}"
        yield (
            f"texts have {long}; {only_ascii} are ASCII only"
            + (f"; language {findings.language}" if findings.language else "")
        )
    if findings.embedding_length:
        yield f"embeddings have {counted(findings.embedding_length, 'number')}"
    if findings.labels:
        yield counted(findings.labels, "known class", "known classes")


def _bad_records(findings: Findings) -> Iterator[str]:
    for record in findings.first_bad_records:
        place = f", line {record['line']}" if record["line"] else ""
        yield f"{record['file']}{place}: {record['reason']}"


def _report(report: Report) -> Iterator[str]:
    """Say what a run found; of a run that had nothing to do only where everything is."""
    yield f"{bold(report.status)}: release {report.release}, run {report.run}"
    if report.status != "up to date":
        yield from _reported(report)
        yield from _clusters(f"{report.output}/{report.places['clusters']}", report.output)
    named = {"report": "record"}  # what a person opens as the report is the page
    places = {named.get(name, name): path for name, path in report.places.items() if name != "page"}
    yield from file_list(places, f"{report.output}/")
    output = shlex.quote(relative(report.output))
    steps = [
        (f"label {output}", "asks you about some documents, in a browser"),
        (f'classify {output} "a text"', "says which cluster a text belongs to"),
        (f"export {output} groups.csv", "writes the cluster of every document"),
    ]
    if not _has_text_model(report):
        del steps[1]
    yield from next_steps(*steps)
    if "page" in report.places:  # reports of former versions have none
        yield _report_at(f"{report.output}/{report.places['page']}", report.output)


def _has_text_model(report: Report) -> bool:
    """Return whether rows of a new text can be made: those of ready embeddings cannot."""
    vectors = report.vocabulary.get("embeddings")
    return bool(report.vocabulary) and (not vectors or bool(vectors["model"]))


def _report_at(path: str, place: str) -> str:
    """Return the last line of a page: where to look next, or what makes a report that is not there.

    A report that could not be written was a warning of the command that made all else of `place`.
    """
    from hmrf_dask.storage.addresses import absolute_url
    from hmrf_dask.storage.stores import open_storage

    folder, _, name = path.rpartition("/")
    there = True
    with suppress(HmrfError, OSError):  # all went well before a store that fails now
        there = name in open_storage(absolute_url(folder), {}, durable=False).names("")
    if there:
        return f"{bold('Report')}: open {relative(path)} in a browser"
    made_by = f"{own_name()} report {shlex.quote(relative(place))}"
    return f"{bold('Report')}: not written; {made_by} makes it"


def _reported(report: Report) -> Iterator[str]:
    documents, quarantined = report.documents, report.documents["quarantined"]
    line = f"{_since(documents, 'document')}; {documents['vectorised']:,} vectorised"
    if "outliers" in documents:
        line += f"; {documents['outliers']:,} of no cluster"
    yield f"{line}, {counted(quarantined, 'record')} quarantined" if quarantined else line
    yield _since(report.files, report.unit)
    if report.parent is not None and (report.mode != "predict" or documents["changed"]):
        both = counted(documents["all"] - documents["new"], "document")
        yield (
            f"{documents['moved']:,} of the {both} that the last release had are in another "
            f"cluster ({documents['moved_share']:.2%})"
        )
    if report.vocabulary:
        yield _words(report)
        if vectors := report.vocabulary.get("embeddings"):
            yield _vectors(vectors)
    if answers := "; ".join(answer_lines(report.answers)):
        yield answers
    if fit := report.fit:
        yield (
            f"J = {fit['J']:.6g} after {counted(fit['iterations'], 'iteration')} from a "
            f"{report.start} start ({fit['stop_reason']})"
        )
        if report.parent is None:
            yield WHAT_J_IS
        if fit.get("start_reason"):  # reports of predict runs and of older ones have none
            yield f"start: {fit['start_reason']}"
        if chosen := fit.get("choice_of_k"):
            yield (
                f"K = {chosen['n_clusters']} was chosen for release {chosen['release']}; that a K "
                f"of {chosen['least']} to {chosen['largest']} is right is {chosen['likely']:.0%} "
                "likely; n_clusters in the job sets another"
            )
    number, kinds = counted(report.clusters["number"], "cluster"), report.clusters
    names = [name for name in ("kept", "split", "merged", "new", "vanished") if kinds.get(name)]
    changes = ", ".join(f"{kinds[name]} {name}" for name in names)
    yield number if report.parent is None else f"{number}: {changes}"
    yield from kinds.get("edits", [])
    if report.nmi is not None:
        yield f"NMI with the known classes: {report.nmi:.3f} (1 is equal, 0 unrelated)"


def _since(counts: dict[str, Any], what: str) -> str:
    """Return how many there are, and what happened to them since the last release."""
    since = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("new", "changed", "gone"))
    return f"{counted(counts['all'], what)}: {since}"


def _words(report: Report) -> str:
    words = report.vocabulary
    made = "made in this run" if words["refit"] else "unchanged"
    line = f"{counted(words['terms'], 'term')}, {made}"
    if words["refit"] or not report.files["new"] + report.files["changed"]:
        return line
    return (
        f"{line}; {words['unknown_share']:.1%} of the words in new files are not among them "
        f"({words['unknown_share_then']:.1%} where they were made)"
    )


def _vectors(vectors: dict[str, Any]) -> str:
    """Return what made the vectors of rows, and how many texts it was given in this run."""
    if not vectors["model"]:
        line = f"embeddings of {vectors['width']} numbers"
    else:
        line = f"{counted(vectors['embedded'], 'text')} embedded by {vectors['model']}"
    empty = vectors["without_token"]
    return f"{line}; {counted(empty, 'document')} without a token it knows" if empty else line


def _clusters(url: str, output: str) -> Iterator[str]:
    """Return the largest clusters, each with its size, the name it was given, and its top words."""
    from hmrf_dask.documents.streams import read_whole
    from hmrf_dask.jobs.names import names_given
    from hmrf_dask.jobs.places import last_release
    from hmrf_dask.storage.whole_files import decode_parquet

    try:
        clusters = decode_parquet(read_whole(url, {})).to_pylist()
        release = last_release(output)
        names = names_given(output, release) if release is not None else {}
    except (OSError, ValueError) as error:  # damaged since it was published, or a store that fails
        yield f"clusters: cannot be read now ({in_words(error)}); see hmrf-dask inspect --verify"
        return
    clusters.sort(key=lambda cluster: -cluster["size"])
    yield bold("cluster      size  top words")
    for cluster in clusters[:MOST]:
        words, number = " ".join(cluster["top_words"] or ()), cluster["cluster"]
        name = f"{one_line(names[number])}: " if number in names else ""
        yield cut_to_terminal(f"{number:7} {cluster['size']:9,}  {name}{words}")
    if len(clusters) > MOST:
        yield f"… {len(clusters) - MOST} more in the clusters file"


def _written(written: Written) -> Iterator[str]:
    """Say what the report says first, and where it is."""
    for title, lines in (("Look at these first", written.alerts), ("Missing", written.limits)):
        yield from section(title, lines, len(lines))
    yield from file_list({"report": written.html, "data": written.json})


def _inspection(inspection: dict[str, Any]) -> Iterator[str]:
    """Say what lies in an output or a run directory, and how far its run is."""
    from hmrf_dask.jobs.places import Report

    kind, report = inspection["kind"], inspection.get("report")
    yield f"{bold(kind)} {relative(inspection['place'])}"
    if kind == "output":
        edits = (inspection["release"] or {}).get("edits", [])
        yield from (_release(inspection["release"]), *edits, _holder(inspection["holder"]))
        if len(inspection["releases"]) > 1:
            yield "releases to choose from (by --release N, or diff OUTPUT A B):"
            yield from map(_kept_release, inspection["releases"])
        if journal := inspection.get("journal"):
            yield journal_line(journal)
    if kind == "run" and not inspection["running"]:
        yield "the fit is done"
    if kind == "job run" and not report:
        yield "it did not end, or has not yet: the output says whether it is at work"
    if report:
        yield from _reported(Report(**report))
    if inspection["progress"] and not report:
        yield from _progress(inspection["progress"])


def _release(release: dict[str, Any] | None) -> str:
    if release is None:
        return "no release yet"
    return (
        f"release {release['number']} of run {release['run']}, {release['when']}, "
        f"{counted(release['files'], 'file')} ({release['hashed']} hashed): {_counts(release)}"
    )


def _kept_release(release: dict[str, Any]) -> str:
    when = release["when"][:16].replace("T", " ")
    return f"  {release['number']:3}  {when}  {_counts(release)}"


def _counts(release: dict[str, Any]) -> str:
    """Return what a release counts, all in the plural there."""
    return ", ".join(counted(n, name.removesuffix("s")) for name, n in release["counts"].items())


def _holder(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "nobody writes it now"
    process = holder["process"]
    return (
        f"run {holder['run']} writes it: process {process['pid']} of {process['user']} on host "
        f"{process['host']}, since {holder['since']}"
    )


def _progress(progress: dict[str, Any]) -> Iterator[str]:
    if step := progress.get("step"):
        count = f" {step['done']} of {step['of']}" if step.get("of") else ""
        yield f"step: {step['step']}{count} (since {step['since']})"
    if fit := progress.get("fit"):
        ended = f", {fit['stop']}" if fit["stop"] else ""
        yield (
            f"fit: {fit['phase']} {fit['iteration']}, J {fit['J']:.6g}, "
            f"{rows_moved(fit['iteration'], fit['rows_moved'])}{ended}"
        )


def _classified(classified: Classified) -> Iterator[str]:
    """Say the cluster of a text, and the next one; of several texts a line each."""
    if len(classified.texts) != 1:
        for row in classified.texts:
            doubt = "" if row["known"] else "  (no word of it is known)"
            words = one_line(row["name"]), one_line(row["text"][:60])
            yield "\t".join([str(row["cluster"]), *words]) + doubt
        return
    (row,) = classified.texts
    called = f"cluster {row['cluster']}"
    yield f"{bold(called)}  {one_line(row['name'])}"
    if not row["known"]:
        yield "the release knows none of its words, so the cluster says nothing of it"
    elif row["cluster"] < 0:
        nearest = "" if row["runner_up"] is None else f"; the nearest is cluster {row['runner_up']}"
        yield f"distance {row['distortion']:.3f}: too far from every cluster{nearest}"
    elif row["runner_up"] is not None:
        yield (
            f"distance {row['distortion']:.3f} (0 is nearest); next is cluster "
            f"{row['runner_up']}, {row['margin']:.3f} farther"
        )


def _difference(difference: Difference) -> Iterator[str]:
    """Say what moved from where to where, with some documents and why, what came and went."""
    counts = difference.documents
    share = counts["moved"] / max(counts["both"], 1)
    title = f"release {difference.before} to {difference.after}"
    yield (
        f"{bold(title)}: {counts['moved']:,} of {counted(counts['both'], 'document')} that both "
        f"have are in another cluster ({share:.2%}), {counts['new']:,} new, {counts['gone']:,} gone"
    )
    files = ", ".join(f"{number:,} {name}" for name, number in difference.files.items())
    yield f"files: {files}; {counted(difference.answers, 'new answer')}"
    if difference.flows:
        yield bold("documents  from → to")
    for one in difference.flows:
        words = f"{one['from']} {one['from_name']} → {one['to']} {one['to_name']}"
        yield cut_to_terminal(f"{one['documents']:9,}  {one_line(words)}")
    if difference.moved:
        yield bold("some of them")
    for row in difference.moved:
        why = f"because it is {', '.join(row['answers'])}" if row["answers"] else ""
        moved = f"  {one_line(row['doc_id'])}: {row['from']} → {row['to']}  {one_line(why)}"
        yield moved.rstrip()
        if row["text"]:
            yield cut_to_terminal(f"    {one_line(row['text'])}")


def _renamed(renamed: Renamed | Named) -> Iterator[str]:
    yield one_line(renamed.said)


def _edited(edited: Edited) -> Iterator[str]:
    yield one_line(edited.said)
    job = "JOB" if edited.job is None else shlex.quote(relative(edited.job))
    undo = f"edit {shlex.quote(relative(edited.output))} --undo {edited.clusters[0]}"
    steps = [(f"run {job}", "does it")] if edited.next_run else []
    if not edited.taken_back:
        steps.append((undo, "takes it back"))
    if steps:
        yield from next_steps(*steps)


def _exported(exported: Exported) -> Iterator[str]:
    yield (
        f"{bold(counted(exported.documents, 'document'))} of release {exported.release} in "
        f"{relative(exported.file)}"
    )
    yield f"columns: {one_line(', '.join(exported.columns))}"


_PAGES: dict[str, Callable[[Any], Iterator[str]]] = {
    "Agreement": _agreement,
    "Asked": asked_lines,
    "Classified": _classified,
    "DemoResult": _demo,
    "Difference": _difference,
    "Edited": _edited,
    "Exchange": exchange_lines,
    "Exported": _exported,
    "Findings": _findings,
    "FitResult": _fit,
    "Prediction": _prediction,
    "Named": _renamed,
    "Plan": plan_lines,
    "NewJob": _new_job,
    "Renamed": _renamed,
    "Report": _report,
    "Suggestion": _suggestion,
    "Written": _written,
    "dict": _inspection,
}
