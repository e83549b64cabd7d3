"""`paddlewheel convert precision`: writes an fp32 model in fp16, bf16 or int8 and compares the outputs."""
