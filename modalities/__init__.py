"""One package per modality: a tokenizer that says where its tokens are, the shared encoder, and a head."""
