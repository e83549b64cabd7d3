"""The demo, a BERT classifier of Chinese headlines: data, vocabulary, model, training and conversion."""
