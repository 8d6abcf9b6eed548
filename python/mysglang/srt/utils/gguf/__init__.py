"""GGUF files: llama.cpp's format, which holds a model's sizes, its tokenizer and its weights in one file. No torch."""
