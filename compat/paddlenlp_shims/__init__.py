"""PaddleNLP's import names for services written with its tokenizers, where PaddleNLP itself is not installed.

`paddlenlp` and the tokenizer packages of its time (`faster_tokenizers`, `faster_tokenizer`,
`fast_tokenizer`) lie in this folder, which is not on `sys.path`: `finder` finds them for whoever imports
them, after everybody else.
"""
