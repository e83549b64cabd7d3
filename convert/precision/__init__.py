"""`paddlewheel convert precision`: fp16, bf16 and int8 of an fp32 model."""
