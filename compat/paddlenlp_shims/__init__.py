"""PaddleNLP's packages for services that use its tokenizers where PaddleNLP itself is not installed.

`paddlenlp` and the tokenizer packages of its time (`faster_tokenizers`, `faster_tokenizer`, `fast_tokenizer`)
lie in this folder, which is not on `sys.path`. The import hook in `finder` finds them after all other
finders.
"""
