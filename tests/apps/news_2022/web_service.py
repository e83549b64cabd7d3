# ruff: noqa: B008, E731, SIM118 - it is left as it was written
"""A BERT classifier as it was written in 2022, with PaddleNLP's tokenizer and batch functions, and SciPy."""

from paddle_serving_server.web_service import Op, WebService


def convert_example(example, tokenizer, max_seq_length=512, pad_to_max_seq_len=False):
    encoded_inputs = tokenizer(
        text=example, max_seq_len=max_seq_length, pad_to_max_seq_len=pad_to_max_seq_len
    )
    input_ids = encoded_inputs["input_ids"]
    token_type_ids = encoded_inputs["token_type_ids"]
    return input_ids, token_type_ids, [1] * len(input_ids)


class BertOp(Op):
    tokenizer = None

    def init_op(self):
        from paddlenlp.transformers.bert.faster_tokenizer import BertFasterTokenizer

        self.tokenizer = BertFasterTokenizer.from_pretrained("bert-base-chinese")

    def set_dynamic_shape_info(self):
        min_input_shape = {
            "input_ids": [1, 1],
            "token_type_ids": [1, 1],
            "attention_mask": [1, 1],
            "unsqueeze2_0.tmp_0": [1, 1, 1, 1],
            "tmp_2": [1, 1],
        }
        max_input_shape = {
            "input_ids": [10, 512],
            "token_type_ids": [10, 512],
            "attention_mask": [10, 512],
            "unsqueeze2_0.tmp_0": [10, 1, 1, 512],
            "tmp_2": [10, 512],
        }
        opt_input_shape = {
            "input_ids": [1, 512],
            "token_type_ids": [1, 512],
            "attention_mask": [1, 512],
            "unsqueeze2_0.tmp_0": [1, 1, 1, 512],
            "tmp_2": [1, 512],
        }
        self.dynamic_shape_info = {
            "min_input_shape": min_input_shape,
            "max_input_shape": max_input_shape,
            "opt_input_shape": opt_input_shape,
        }

    def preprocess(self, input_dicts, data_id=0, log_id=0):
        from paddlenlp.data import Pad, Tuple

        ((_, input_dict),) = input_dicts.items()
        batch_size = len(input_dict.keys())
        examples = []
        for i in range(batch_size):
            examples.append(convert_example(input_dict[str(i)], self.tokenizer))
        batchify_fn = (
            lambda samples,
            fn=Tuple(
                Pad(axis=0, pad_val=self.tokenizer.pad_token_id),  # input
                Pad(axis=0, pad_val=self.tokenizer.pad_token_type_id),  # segment
                Pad(axis=0, pad_val=0),  # attention mask
            ): fn(samples)
        )
        input_ids, segment_ids, attention_mask = batchify_fn(examples)
        feed_dict = {
            "input_ids": input_ids,
            "token_type_ids": segment_ids,
            "attention_mask": attention_mask,
        }
        return feed_dict, False, None, ""

    def postprocess(self, input_data, fetch_data, data_id=0, log_id=0):
        import scipy.special

        for key in fetch_data.keys():
            fetch_data[key] = scipy.special.softmax(fetch_data[key], axis=-1)
        return fetch_data, None, ""


class NewsService(WebService):
    def get_pipeline_response(self, read_op):
        return BertOp(name="bert", input_ops=[read_op])


news_service = NewsService(name="bert")
news_service.prepare_pipeline_config("config.yml")
news_service.run_service()
