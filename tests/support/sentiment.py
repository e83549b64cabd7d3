"""The source of a user's small text classifier in `paddle.nn`, for tests of `paddlewheel convert`."""

SPEC = "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]"
SENTIMENT = '''
import paddle


class Sentiment(paddle.nn.Layer):
    """Three classes from the mean of the words the mask keeps."""

    def __init__(self):
        super().__init__()
        self.word = paddle.nn.Embedding(50, 16)
        self.out = paddle.nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask):
        kept = attention_mask.astype("float32").unsqueeze(-1)
        return self.out((self.word(input_ids) * kept).sum(1) / kept.sum(1))
'''
