"""Which recorded cases of Triton a repository is not asked, and which it answers otherwise, with reasons."""

from __future__ import annotations

_SEQUENCES = "replayed in their order: tests/sequences/test_bound_sequences.py"

# By the beginning of their names, beside those of triton_recordings.BY_THEMSELVES.
LEFT = {
    "err.cl_too_long": "no answer was recorded: ours waits for the body and then answers 408",
    "err.seq": "the repository lacks simple_sequence",
    "g.big": "5 MB without contents recorded",
    "g.seq": _SEQUENCES,
    "g.stream.seq": _SEQUENCES,
    "metrics": "of a port that has metrics alone",
    "sequence": _SEQUENCES,
    "stats.all": "figures differ with each run",
    "stats.cached": "figures differ with each run",
    "stats.ensemble": "figures differ with each run",
}
DIFFERENCES = {
    "err.cl_text": "refused with a reason; Triton closes the connection without an answer",
    "model.metadata.urlenc": "a path says the same with and without percent-encoding",
    "model_error.9": "an output of another datatype or shape than config.pbtxt declares is an error",
    "params.response_params": "that version's InferenceResponse had no parameters; later ones and ours do",
    "v1.path": "KServe v1 is served, too",
}
