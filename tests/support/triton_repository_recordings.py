"""Which recorded cases of Triton a repository is not asked, and which it answers otherwise, with reasons."""

from __future__ import annotations

_SEQUENCES = "models of sequences are not served yet"
_DECOUPLED = "models of several answers a request are not served yet"
_CACHE = "the response cache is not built yet"

# By the beginning of their names, beside those of triton_recordings.BY_THEMSELVES.
LEFT = {
    "cached": _CACHE,
    "err.cl_too_long": "no answer was recorded: ours waits for the body and then answers 408",
    "err.seq": _SEQUENCES,
    "g.big": "5 MB without contents recorded",
    "g.err.decoupled": _DECOUPLED,
    "g.seq": _SEQUENCES,
    "g.stream.gen": _DECOUPLED,
    "g.stream.repeat": _DECOUPLED,
    "g.stream.seq": _SEQUENCES,
    "generate.missing": _DECOUPLED,
    "generate.multi": _DECOUPLED,
    "generate.wrong_type": _DECOUPLED,
    "generate_stream": _DECOUPLED,
    "metrics": "of a port that has metrics alone",
    "model.config.cached": _CACHE,
    "model.config.repeat": _DECOUPLED,
    "model.metadata.gen": _DECOUPLED,
    "sequence": _SEQUENCES,
    "stats.all": "figures differ with each run",
    "stats.cached": _CACHE,
    "stats.ensemble": "figures differ with each run",
}
LEFT_ALONE = {"generate": _DECOUPLED}  # by their whole names
DIFFERENCES = {
    "err.cl_text": "refused with a reason; Triton closes the connection without an answer",
    "model.metadata.urlenc": "a path says the same with and without percent-encoding",
    "model_error.9": "an output of another datatype or shape than config.pbtxt declares is an error",
    "params.response_params": "that version's InferenceResponse had no parameters; later ones and ours do",
    "v1.path": "KServe v1 is served, too",
}
