"""Classifies the sentences on standard input over HTTP: what the model takes and gives is asked first.

classify_over_http.py URL MODEL
"""

import sys
import warnings

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import tritonhttpclient as httpclient  # the name of older programs

url, model = sys.argv[1:]
client = httpclient.InferenceServerClient(url=url, verbose=False, concurrency=1)
metadata = client.get_model_metadata(model_name=model, model_version="1")
config = client.get_model_config(model_name=model, model_version="1")
told = [metadata["name"], config["name"], config["max_batch_size"], config["input"][0]["data_type"]]
print(*told)  # noqa: T201 - it is a program
sentences = np.array(sys.stdin.read().split("\n"), dtype=np.object_)
given = httpclient.InferInput(
    metadata["inputs"][0]["name"], [len(sentences)], metadata["inputs"][0]["datatype"]
)
given.set_data_from_numpy(sentences, binary_data=False)
wanted = [httpclient.InferRequestedOutput(each["name"], binary_data=False) for each in metadata["outputs"]]
results = client.infer(model_name=model, model_version="1", inputs=[given], outputs=wanted)
for output in metadata["outputs"]:
    told = [output["name"], output["datatype"], results.as_numpy(output["name"]).tolist()]
    print(*told)  # noqa: T201
