"""`paddlenlp.utils`: its logger, and where PaddleNLP keeps its models."""
