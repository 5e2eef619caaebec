// The C face of the Rust library edge_text: Jinja chat templates as Hugging Face's transformers renders them, under budgets.
// Called by src/text/chat_template.cc only. Threads: a template may be rendered by several threads at once. No function panics or aborts
// on any input. Ownership: a template is freed by edge_template_free, a buffer by edge_buffer_free.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct edge_template edge_template;

typedef struct edge_buffer {
  uint8_t* data;
  size_t size;
  size_t capacity;
} edge_buffer;

typedef struct edge_template_limits {
  uint64_t fuel;              // engine instructions and units of data
  uint64_t max_output_bytes;
  uint64_t max_source_bytes;
  uint8_t trim_blocks;        // transformers sets both
  uint8_t lstrip_blocks;
} edge_template_limits;

enum {
  EDGE_OK = 0,
  EDGE_BAD_INPUT = 1,   // template or context does not parse, or the template failed on this input
  EDGE_TOO_LARGE = 2,   // a budget was passed
  EDGE_REFUSED = 3,     // the template called raise_exception; the error text is its message
  EDGE_INTERNAL = 4     // a caught panic
};

// On failure *out_error holds a sentence and the template is NULL.
int edge_template_compile(const uint8_t* source, size_t source_size, const edge_template_limits* limits, edge_template** out_template,
                          edge_buffer* out_error);
// context: a JSON object, UTF-8. now_unix_s: what strftime_now sees, UTC. On failure *out holds the error sentence.
int edge_template_render(const edge_template* compiled, const uint8_t* context_json, size_t context_size, int64_t now_unix_s, edge_buffer* out);
void edge_template_free(edge_template* compiled);
void edge_buffer_free(edge_buffer* buffer);

#ifdef __cplusplus
}
#endif
