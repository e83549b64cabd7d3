"""CTC prefix beam search of streams; each chunk continues with the hypotheses of its stream."""

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
    def initialize(self, args):
        self.tries = {}

    def execute(self, requests):
        log_probs, ids, keys, starts = [], [], [], []
        for request in requests:
            key, start = get(request, "CORRID").item(), bool(get(request, "START").item())
            if start:
                self.tries[key] = PathTrie()
            length = get(request, "output_lens").item()
            log_probs.append(get(request, "log_probs")[0, :length].tolist())
            ids.append(get(request, "log_probs_idx")[0, :length].tolist())
            keys.append(key)
            starts.append(start)
        hypotheses = search(log_probs, ids, [self.tries[key] for key in keys], starts)
        for key, request in zip(keys, requests, strict=True):
            if get(request, "END").item():
                del self.tries[key]
        texts = map_batch([row[0][1] for row in hypotheses], VOCABULARY, 1)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[text]], object))])
            for text in texts
        ]
