"""CTC prefix beam search of recordings."""

import numpy as np
import triton_python_backend_utils as pb_utils
from swig_decoders import PathTrie, TrieVector, ctc_beam_search_decoder_batch, map_batch

VOCABULARY = ["<blank>", *"0123456789"]
BEAM = 4


def get(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def search(log_probs, ids, tries, starts):
    roots = TrieVector()
    for trie in tries:
        roots.append(trie)
    return ctc_beam_search_decoder_batch(
        log_probs, ids, roots, starts, BEAM, 1, blank_id=0, space_id=-2, cutoff_prob=0.9999
    )


class TritonPythonModel:
    def execute(self, requests):
        log_probs, ids, counts = [], [], []
        for request in requests:
            lengths = get(request, "output_lens").ravel()
            counts.append(len(lengths))
            for row, length in enumerate(lengths):
                log_probs.append(get(request, "log_probs")[row, :length].tolist())
                ids.append(get(request, "log_probs_idx")[row, :length].tolist())
        hypotheses = search(log_probs, ids, [PathTrie() for _ in ids], [True] * len(ids))
        texts = map_batch([row[0][1] for row in hypotheses], VOCABULARY, 1)
        ends = np.cumsum(counts)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", np.array(texts[end - count : end], object).reshape(-1, 1))]
            )
            for end, count in zip(ends, counts, strict=True)
        ]
