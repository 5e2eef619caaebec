// The C face of the Rust crate edge_grammar: compiles grammars over a vocabulary and gives the mask of tokens that may follow.
// Called by the runtime's grammar compiler (hosts/server/grammar_engine.cc) and by `tie grammar check`. No function panics or aborts on any input.
// Threads: a vocabulary may be used by several threads at once; a grammar belongs to one thread at a time and may move between threads.
// Ownership: free what new, compile and fork return; grammars before their vocabulary.
// Grammar text: a Lark grammar, or a JSON list {"grammars": [{"json_schema": …} or {"lark_grammar": …}]}. At most 1 MiB, brackets at most 200 deep.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct edge_grammar_vocabulary edge_grammar_vocabulary;
typedef struct edge_grammar edge_grammar;

// A sentence, zero-terminated. Written when a function does not return EDGE_GRAMMAR_OK; may be null.
typedef struct edge_grammar_error {
  char text[512];
} edge_grammar_error;

enum {
  EDGE_GRAMMAR_OK = 0,
  EDGE_GRAMMAR_REFUSED = 1,   // the text is wrong, uses what is not supported, or passes a limit; a token that may not follow
  EDGE_GRAMMAR_INTERNAL = 2   // a caught panic
};

// Token i has the bytes [offsets[i], offsets[i + 1]); n_tokens + 1 offsets. control[i] != 0: the token is no text; a Lark grammar may name it.
// end_ids: at least one. Cost: tens of milliseconds for 50,000 tokens.
int edge_grammar_vocabulary_new(const uint8_t* bytes, const uint32_t* offsets, const uint8_t* control, size_t n_tokens, const uint32_t* end_ids,
                                size_t n_end, edge_grammar_vocabulary** out, edge_grammar_error* error);
void edge_grammar_vocabulary_free(edge_grammar_vocabulary* vocabulary);

int edge_grammar_compile(const edge_grammar_vocabulary* vocabulary, const uint8_t* text, size_t size, edge_grammar** out, edge_grammar_error* error);
int edge_grammar_fork(const edge_grammar* grammar, edge_grammar** out);
int edge_grammar_accept(edge_grammar* grammar, uint32_t token, edge_grammar_error* error);
// mask: `words` words of 32 bits, at least one bit per token; end tokens are in it when the text is complete.
// *complete = 1: the text is complete and nothing may follow (the mask is empty).
int edge_grammar_fill_mask(edge_grammar* grammar, uint32_t* mask, size_t words, uint8_t* complete, edge_grammar_error* error);
// 1 when the text so far is complete.
uint8_t edge_grammar_may_end(edge_grammar* grammar);
void edge_grammar_free(edge_grammar* grammar);

#ifdef __cplusplus
}
#endif
