// One pass through the model: over 500 lines because its phases share one thread's state and rules of who may write.
#include "inference/bones/model/forward.h"

#include <algorithm>
#include <cstring>

#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/model/row_shares.h"
#include "inference/bones/ops/attention.h"
#include "inference/bones/ops/linear.h"

namespace tie::bones {

// One thread's walk through the layers. Phases end at a barrier; within a phase threads write disjoint parts. Usually
// the threads divide the columns of every matrix. In a larger batch each takes its own rows instead ("apart"): what it
// reads it has written itself, in its own caches, and only attention needs barriers; in a large batch of short rows
// each takes whole sequences, and no layer has a barrier (row_shares.h). Over tensor ranks a larger batch's residual
// stream is cut by tiles of rows: a thread adds up, norms and rounds the rows that it keeps, and the stage shares what
// they were rounded to.
class Pass {
 public:
  struct Plan {
    RowShares rows;
    bool keep_rows = false;
    AttentionPlan attention;
  };

  Pass(Model::State& state, const Batch& batch, const KvPool& kv, Model::State::PartPlace place, const Plan& plan,
       uint32_t thread)
      : s_(state),
        ranks_(state.options.ranks),
        place_(place),
        c_(state.config),
        k_(*state.kernels),
        ws_(state.ws),
        batch_(batch),
        kv_(kv),
        split_(plan.attention.split),
        thread_(thread),
        n_threads_(state.options.pool->size()),
        rows_(static_cast<uint32_t>(batch.tokens.size())),
        apart_(plan.rows.apart),
        whole_(plan.rows.whole),
        first_row_(apart_ ? plan.rows.first_row(thread) : 0),
        n_rows_(apart_ ? plan.rows.first_row(thread + 1) - first_row_ : rows_),
        items_(item_share(plan)),
        keep_rows_(plan.keep_rows),
        heads_by_item_((whole_ || !apart_) && ws_.items.size() == batch.sequences.size() * c_.n_kv_heads),
        in_(keep_rows_ ? shared_in() : own_rows(ws_.in_acts)),
        attention_in_(own_rows(ws_.attention_acts)),
        ffn_(own_rows(ws_.ffn_acts)) {}

  // False: a rank is lost.
  bool run() {
    if (!enter()) return false;
    for (uint32_t i = 0; i < c_.n_layers; ++i)
      if (!attention(i) || !feed_forward(i)) return false;
    if (apart_) barrier();
    if (keep_rows_) add_projected(residual_rows());
    return s_.shard.last_stage ? logits() : hand_on();
  }

 private:
  void barrier() { s_.options.pool->barrier(); }
  ThreadScratch& scratch() { return ws_.threads[thread_]; }
  uint32_t share(uint32_t total, uint32_t thread) const {
    return static_cast<uint32_t>(uint64_t{total} * thread / n_threads_);
  }

  // The items of attention that are this thread's: those of its own sequences, an equal share, or whichever it finds
  // waiting.
  ItemShare item_share(const Plan& plan) const {
    const auto n = static_cast<uint32_t>(ws_.items.size());
    if (!whole_) return {share(n, thread_), share(n, thread_ + 1), !plan.attention.even};
    ItemShare own{0, 0, false};
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t row = batch_.sequences[ws_.items[i].sequence].first_row;
      if (row < first_row_ || row >= first_row_ + n_rows_) continue;
      if (own.last == 0) own.first = i;
      own.last = i + 1;
    }
    return own;
  }
  Activations own_rows(const Activations& all) const {
    Activations own = rows_from(all, first_row_);
    own.rows = n_rows_;
    return own;
  }
  // This thread's part of the products of rows [first_row_, first_row_ + n_rows_).
  struct Range {
    uint32_t first, last;
  };
  Range own_share(uint32_t total) const {
    if (apart_) return {0, total};
    return {share(total, thread_), share(total, thread_ + 1)};
  }
  uint32_t part() const { return apart_ ? 0 : thread_; }
  uint32_t parts() const { return apart_ ? 1 : n_threads_; }
  void barrier_of_shared_rows() {
    if (!apart_) barrier();
  }
  void barrier_of_attention() {
    if (!whole_) barrier();
  }

  // Among the threads of all tensor ranks.
  uint32_t stage_part() const { return ranks_->place().tensor_rank * n_threads_ + thread_; }
  uint32_t stage_parts() const { return ranks_->place().tensor_ranks * n_threads_; }
  // The rows, whole tiles of them, that parts [first, last) of the stage keep.
  Range kept_by(uint32_t first, uint32_t last) const {
    const RowShares kept{.rows = rows_, .tile_rows = in_.rows_per_tile, .n_threads = stage_parts()};
    return {kept.first_row(first), kept.first_row(last)};
  }
  // The rows whose residual stream is this thread's to change.
  Range residual_rows() const {
    if (keep_rows_) return kept_by(stage_part(), stage_part() + 1);
    const Range mine = own_share(n_rows_);
    return {first_row_ + mine.first, first_row_ + mine.last};
  }
  Takers takers() const { return keep_rows_ ? Takers::kOneRank : Takers::kEveryRank; }
  Activations shared_in() const {
    const Activations& shape = ws_.in_acts;
    Activations in = ranks_->shared_rows();
    in.rows = shape.rows, in.rows_per_tile = shape.rows_per_tile, in.group = shape.group;
    in.want_codes = shape.want_codes, in.want_f32 = shape.want_f32;
    return in;
  }

  bool divided() const { return ranks_ != nullptr && ranks_->place().tensor_ranks > 1; }

  // The rotary angles and the first residual stream: embeddings, or what the stage before hands over.
  bool enter() {
    for (uint32_t row = share(rows_, thread_); row < share(rows_, thread_ + 1); ++row) {
      const size_t at = size_t{row} * (c_.rope_dim / 2);
      for (int set = 0; set < (c_.sliding_window ? 2 : 1); ++set)
        rope_table(s_.rope[set], ws_.position[row], ws_.cos[set] + at, ws_.sin[set] + at);
    }
    if (s_.shard.first_stage) {
      if (!embed()) return false;
    } else {
      if (thread_ == 0) s_.rows_are_here = ranks_->wait_rows(place_.index);
      barrier();
      if (!s_.rows_are_here) return false;
      ranks_->copy_rows(thread_, ws_.x, place_.first_row, rows_, c_.n_embd);
    }
    barrier();
    return true;
  }

  // With the vocabulary divided, one rank of all adds a token's row and the others add zeros: exact.
  bool embed() {
    float* to = divided() ? ranks_->partial(thread_) : ws_.x;
    for (uint32_t row = share(rows_, thread_); row < share(rows_, thread_ + 1); ++row) {
      const uint32_t token = static_cast<uint32_t>(batch_.tokens[row]) - s_.shard.first_vocab;
      float* x = to + size_t{row} * c_.n_embd;
      if (token >= s_.shard.n_vocab) {
        std::fill_n(x, c_.n_embd, 0.0f);
        continue;
      }
      gather_row(s_.embedding, token, x);
      if (c_.embedding_scale != 1.0f)
        for (uint32_t i = 0; i < c_.n_embd; ++i) x[i] *= c_.embedding_scale;
    }
    Range mine{share(rows_, thread_), share(rows_, thread_ + 1)};
    if (divided()) {
      mine = residual_rows();
      if (!ranks_->sum(thread_, rows_, c_.n_embd, takers())) return false;
      for (uint32_t row = mine.first; row < mine.last; ++row)
        ranks_->take_sum(thread_, row, ws_.x + size_t{row} * c_.n_embd, false);
    }
    for (const EmbeddingRow& given : batch_.embeddings)
      if (given.row >= mine.first && given.row < mine.last)
        std::memcpy(ws_.x + size_t{given.row} * c_.n_embd, given.values, c_.n_embd * sizeof(float));
    return true;
  }

  // Quantised norm of the residual stream (weight given) or of another input. A small batch is done by every thread for
  // itself, which saves a barrier.
  const Activations& quantised(const float* x, uint32_t k, const float* weight, Activations& shared, Activations& own) {
    if (apart_ || rows_ > kSmallBatchRows) {
      norm_quantize(k_, x + size_t{first_row_} * k, k, weight, c_.norm_epsilon, shared, part(), parts(), scratch());
      barrier_of_shared_rows();
      return shared;
    }
    shape_activations(k_, own, rows_, shared.want_codes, shared.want_f32);
    norm_quantize(k_, x, k, weight, c_.norm_epsilon, own, 0, 1, scratch());
    return own;
  }
  // Null: a rank is lost.
  const Activations* normed_input(const float* weight) {
    if (!keep_rows_) return &quantised(ws_.x, c_.n_embd, weight, in_, scratch().in_acts);
    const Range mine = residual_rows();
    for (uint32_t row = mine.first; row < mine.last; row += in_.rows_per_tile) {
      Activations tile = rows_from(in_, row);
      tile.rows = std::min(in_.rows_per_tile, mine.last - row);
      add_projected({row, row + tile.rows});
      norm_quantize(k_, ws_.x + size_t{row} * c_.n_embd, c_.n_embd, weight, c_.norm_epsilon, tile, 0, 1, scratch());
    }
    owed_ = {};
    return ranks_->meet() ? &in_ : nullptr;
  }

  // x += out, or with a post norm x += norm(out). `acts` is the quantised input of w. Over ranks, each computes the
  // addend of its own inputs; kept rows are added to when the next norm wants them. False: a rank is lost.
  bool project(const PackedMatrix& w, const Activations& acts, const float* post_norm) {
    const bool in_place = !divided() && !post_norm;
    float* out = divided() ? ranks_->partial(thread_) : post_norm ? ws_.projected : ws_.x;
    const LinearTarget target{w, out + size_t{first_row_} * c_.n_embd, c_.n_embd, in_place};
    linear(k_, {&target, 1}, acts, part(), parts(), scratch().matmul);
    if (!divided())
      barrier_of_shared_rows();
    else if (!ranks_->sum(thread_, rows_, c_.n_embd, takers()))
      return false;
    if (in_place) return true;
    owed_ = {true, post_norm};
    if (keep_rows_) return true;
    add_projected(residual_rows());
    owed_ = {};
    barrier_of_shared_rows();
    return true;
  }

  // What project() owes to the residual stream.
  void add_projected(Range rows) {
    for (uint32_t row = rows.first; row < rows.last && owed_.any; ++row) {
      const size_t at = size_t{row} * c_.n_embd;
      if (!owed_.post_norm) {
        ranks_->take_sum(thread_, row, ws_.x + at, true);
        continue;
      }
      float* y = ws_.projected + at;
      if (divided()) ranks_->take_sum(thread_, row, y, false);
      k_.scale_mul_add(ws_.x + at, y, k_.rms_scale(y, c_.n_embd, c_.norm_epsilon), owed_.post_norm, c_.n_embd);
    }
  }

  // Bias, norm, rotation and scale of one head.
  void finish_head(float* head, const float* bias, const float* norm, uint32_t row, bool local, float scale) {
    if (bias) k_.add(head, bias, c_.head_dim);
    if (norm) k_.scale_mul(head, head, k_.rms_scale(head, c_.head_dim, c_.norm_epsilon), norm, c_.head_dim);
    const uint32_t half = c_.rope_dim / 2;
    const int set = local ? 1 : 0;
    k_.rotate(head, ws_.cos[set] + size_t{row} * half, ws_.sin[set] + size_t{row} * half, half, scale);
    if (c_.rope_dim < c_.head_dim && scale != 1.0f)
      k_.scale_by(head + c_.rope_dim, head + c_.rope_dim, scale, c_.head_dim - c_.rope_dim);
  }

  // In place, or in `to`.
  void finish_query(const LayerWeights& w, uint32_t row, uint32_t h, bool local, float* to = nullptr) {
    float* q = ws_.q + (size_t{row} * c_.n_heads + h) * c_.head_dim;
    if (to) q = static_cast<float*>(std::memcpy(to, q, c_.head_dim * sizeof(float)));
    finish_head(q, w.q_bias ? w.q_bias + h * c_.head_dim : nullptr, w.q_norm, row, local, c_.attention_scale);
  }

  void finish_key_value(const LayerWeights& w, uint32_t layer, uint32_t row, uint32_t h, bool local) {
    float* key = ws_.k + (size_t{row} * c_.n_kv_heads + h) * c_.head_dim;
    float* value = ws_.v + (size_t{row} * c_.n_kv_heads + h) * c_.head_dim;
    finish_head(key, w.k_bias ? w.k_bias + h * c_.head_dim : nullptr, w.k_norm, row, local, 1.0f);
    if (w.v_bias) k_.add(value, w.v_bias + h * c_.head_dim, c_.head_dim);
    const SequenceSpan& span = batch_.sequences[ws_.sequence[row]];
    const uint32_t position = span.first_position + row - span.first_row, tokens = kv_.layout.block_tokens;
    std::byte* head =
        kv_.block(span.block_table[position / tokens]) + layer * kv_.layout.layer_bytes() + h * kv_.layout.head_bytes();
    k_.store_kv({key, value, head, position % tokens, tokens, c_.head_dim, kv_.layout.type});
  }

  void finish_heads(const LayerWeights& w, uint32_t layer, bool local) {
    const uint32_t heads = c_.n_heads + c_.n_kv_heads;
    const Range mine = own_share(n_rows_ * heads);
    for (uint32_t i = mine.first; i < mine.last; ++i) {
      const uint32_t row = first_row_ + i / heads, h = i % heads;
      if (h < c_.n_heads)
        finish_query(w, row, h, local);
      else
        finish_key_value(w, layer, row, h - c_.n_heads, local);
    }
    barrier_of_attention();
  }

  // The heads of an item that is all that a sequence has for a kv head: nobody else needs them.
  struct ItemOfLayer {
    Pass* pass;
    const LayerWeights* w;
    uint32_t layer;
    bool local;
  };
  static void finish_item(void* context, const AttentionItem& item, float* heads, bool newest) {
    const ItemOfLayer& at = *static_cast<const ItemOfLayer*>(context);
    Pass& pass = *at.pass;
    const uint32_t group = pass.c_.n_heads / pass.c_.n_kv_heads;
    const SequenceSpan& span = pass.batch_.sequences[item.sequence];
    for (uint32_t row = span.first_row; row < span.first_row + span.n_rows; ++row) {
      for (uint32_t h = item.kv_head * group; h < (item.kv_head + 1) * group; ++h) {
        pass.finish_query(*at.w, row, h, at.local, heads);
        if (heads) heads += pass.c_.head_dim;
      }
      if (newest) pass.finish_key_value(*at.w, at.layer, row, item.kv_head, at.local);
    }
  }

  bool attention(uint32_t layer) {
    const LayerWeights& w = s_.layers[layer];
    const bool local = c_.layer_is_local(s_.shard.first_layer + layer);
    const uint32_t nq = c_.n_heads * c_.head_dim, nkv = c_.n_kv_heads * c_.head_dim;
    const Activations* in = normed_input(w.attention_norm);
    if (!in) return false;
    const size_t row0 = first_row_;
    const LinearTarget qkv[3] = {
        {w.q, ws_.q + row0 * nq, nq}, {w.k, ws_.k + row0 * nkv, nkv}, {w.v, ws_.v + row0 * nkv, nkv}};
    linear(k_, qkv, *in, part(), parts(), scratch().matmul);
    const AttentionLayer at{layer, local ? c_.sliding_window : 0, c_.attention_soft_cap};
    if (split_) fetch_split(ws_, c_, batch_, kv_, at, thread_);
    barrier_of_shared_rows();
    if (!heads_by_item_) finish_heads(w, layer, local);
    ItemOfLayer item{this, &w, layer, local};
    const ItemHook before{&item, heads_by_item_ ? &Pass::finish_item : nullptr};
    if (split_)
      attend_split(k_, ws_, c_, batch_, kv_, at, thread_, before);
    else
      attend_items(k_, ws_, c_, batch_, kv_, at, thread_, items_, before);
    barrier_of_attention();
    return project(w.o, quantised(ws_.attended, nq, nullptr, attention_in_, scratch().attention_acts),
                   w.post_attention_norm);
  }

  // Small batches are routed by one thread, which saves a barrier.
  void choose_experts(const ExpertWeights& w, const Activations& in) {
    ExpertSpace& space = s_.experts;
    const LinearTarget router{w.router, space.router_logits(), space.router_stride()};
    linear(k_, {&router, 1}, in, thread_, n_threads_, scratch().matmul);
    barrier();
    const bool alone = rows_ <= 16;
    if (!alone) {
      space.route(c_, share(rows_, thread_), share(rows_, thread_ + 1));
      barrier();
    }
    if (thread_ == 0) {
      if (alone) space.route(c_, 0, rows_);
      space.group(k_, c_, rows_, s_.want_codes, s_.want_f32);
    }
    barrier();
  }

  // Each thread prepares the inputs of every n-th expert, then all share each expert's columns, beginning at different
  // ones so that the rounding of shares evens out.
  bool expert_feed_forward(const LayerWeights& w) {
    const Activations& in = quantised(ws_.x, c_.n_embd, w.ffn_norm, in_, scratch().in_acts);  // never kept by rows
    choose_experts(w.experts, in);
    auto& groups = s_.experts.groups();
    const bool one_row = rows_ == 1;
    for (uint32_t g = thread_; !one_row && g < groups.size(); g += n_threads_) {
      for (uint32_t i = 0; i < groups[g].n_rows; ++i) {
        const uint32_t slot = groups[g].first_slot + i;
        std::memcpy(s_.experts.gathered(slot), ws_.x + size_t{s_.experts.row_of(slot)} * c_.n_embd,
                    c_.n_embd * sizeof(float));
      }
      norm_quantize(k_, s_.experts.gathered(groups[g].first_slot), c_.n_embd, w.ffn_norm, c_.norm_epsilon, groups[g].in,
                    0, 1, scratch());
    }
    if (!one_row) barrier();
    for (uint32_t g = 0; g < groups.size(); ++g) {
      const uint32_t e = groups[g].expert;
      gated(k_, expert_matrix(w.experts.gate, e, c_.n_experts), expert_matrix(w.experts.up, e, c_.n_experts),
            c_.activation == Activation::kGeluTanh, one_row ? in : groups[g].in, groups[g].ffn,
            (thread_ + g) % n_threads_, n_threads_, scratch());
    }
    barrier();
    for (uint32_t g = 0; g < groups.size(); ++g) {
      const LinearTarget down{expert_matrix(w.experts.down, groups[g].expert, c_.n_experts),
                              s_.experts.output(groups[g].first_slot), c_.n_embd};
      linear(k_, {&down, 1}, groups[g].ffn, (thread_ + g) % n_threads_, n_threads_, scratch().matmul);
    }
    barrier();
    return combine_experts();
  }

  // Over ranks, each has a part of every expert and adds up its own.
  bool combine_experts() {
    float* out = divided() ? ranks_->partial(thread_) : ws_.x;
    for (uint32_t row = share(rows_, thread_); row < share(rows_, thread_ + 1); ++row) {
      float* to = out + size_t{row} * c_.n_embd;
      if (divided()) std::fill_n(to, c_.n_embd, 0.0f);
      s_.experts.combine(c_, row, to);
    }
    if (divided()) {
      if (!ranks_->sum(thread_, rows_, c_.n_embd, Takers::kEveryRank)) return false;
      for (uint32_t row = share(rows_, thread_); row < share(rows_, thread_ + 1); ++row)
        ranks_->take_sum(thread_, row, ws_.x + size_t{row} * c_.n_embd, true);
    }
    barrier();
    return true;
  }

  bool feed_forward(uint32_t layer) {
    const LayerWeights& w = s_.layers[layer];
    if (w.experts.router.n != 0) return expert_feed_forward(w);
    const Activations* in = normed_input(w.ffn_norm);
    if (!in) return false;
    gated(k_, w.gate, w.up, c_.activation == Activation::kGeluTanh, *in, ffn_, part(), parts(), scratch());
    barrier_of_shared_rows();
    return project(w.down, ffn_, w.post_ffn_norm);
  }

  // What the next stage begins with: each thread hands on the rows that it keeps, or a share of those all ranks have.
  bool hand_on() {
    const auto row = [this](uint32_t part) { return static_cast<uint32_t>(uint64_t{rows_} * part / stage_parts()); };
    const Range mine = keep_rows_ ? residual_rows() : Range{row(stage_part()), row(stage_part() + 1)};
    return ranks_->send_rows(thread_, ws_.x + size_t{mine.first} * c_.n_embd, place_.first_row + mine.first,
                             mine.last - mine.first, c_.n_embd);
  }

  // The rows that want logits, side by side in every rank. Of kept rows one rank adds its own and the others zeros.
  bool gather_head_rows(uint32_t n) {
    const size_t width = c_.n_embd;
    const Range share_of_rows{share(n, thread_), share(n, thread_ + 1)};
    if (keep_rows_) {
      const Range mine = residual_rows(), rank = kept_by(stage_part() - thread_, stage_part() - thread_ + n_threads_);
      float* to = ranks_->partial(thread_);
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t row = batch_.logit_rows[i];
        if (row >= mine.first && row < mine.last)
          std::memcpy(to + i * width, ws_.x + row * width, width * sizeof(float));
        else if ((row < rank.first || row >= rank.last) && i >= share_of_rows.first && i < share_of_rows.last)
          std::fill_n(to + i * width, width, 0.0f);
      }
      if (!ranks_->sum(thread_, n, c_.n_embd, Takers::kEveryRank)) return false;
    }
    for (uint32_t i = share_of_rows.first; i < share_of_rows.last; ++i) {
      float* to = ws_.head_in + i * width;
      if (keep_rows_)
        ranks_->take_sum(thread_, i, to, false);
      else
        std::memcpy(to, ws_.x + batch_.logit_rows[i] * width, width * sizeof(float));
    }
    barrier();
    return true;
  }

  bool logits() {
    const auto n = static_cast<uint32_t>(batch_.logit_rows.size());
    if (n == 0) return true;
    if (!gather_head_rows(n)) return false;
    norm_quantize(k_, ws_.head_in, c_.n_embd, s_.output_norm, c_.norm_epsilon, ws_.head_acts, thread_, n_threads_,
                  scratch());
    barrier();
    float* out = s_.logits + place_.first_logit_row * s_.logits_stride + s_.shard.first_vocab;
    const LinearTarget target{s_.output, out, s_.logits_stride};
    linear(k_, {&target, 1}, ws_.head_acts, thread_, n_threads_, scratch().matmul);
    if (c_.logit_soft_cap <= 0.0f) {
      find_best(out, columns_of(s_.output, thread_, n_threads_));
      return true;
    }
    barrier();
    const ColumnRange mine{share(c_.n_vocab, thread_), share(c_.n_vocab, thread_ + 1)};
    for (uint32_t i = 0; i < n; ++i)
      k_.soft_cap(out + i * s_.logits_stride + mine.first, c_.logit_soft_cap, mine.last - mine.first);
    find_best(out, mine);
    return true;
  }

  // In the columns that this thread has just written; forward() or the leader merges them.
  void find_best(float* logits, ColumnRange mine) {
    const uint32_t first_id = s_.shard.first_vocab + mine.first;
    const BestTable& table = s_.best;
    const uint32_t list = (ranks_ ? ranks_->place().tensor_rank * n_threads_ : 0) + thread_;
    for (uint32_t i = 0; i < batch_.best.size(); ++i) {
      const BestOf& want = batch_.best[i];
      if (want.k == 0) continue;
      const uint32_t n = std::min(mine.last - mine.first, want.below - std::min(first_id, want.below));
      const std::span row(logits + i * s_.logits_stride + mine.first, n);
      if (want.mask) apply_mask(row, {want.mask, want.mask_words(s_.image.config().n_vocab)}, first_id);
      const auto best = select_top(row, want.k, scratch().top);
      Candidate* to = table.list(list, place_.first_logit_row + i);
      for (const Candidate& c : best) *to++ = {c.logit, c.token + static_cast<int32_t>(first_id)};
      table.count(list, place_.first_logit_row + i) = static_cast<uint32_t>(best.size());
    }
  }

  Model::State& s_;
  Communicator* const ranks_;
  const Model::State::PartPlace place_;
  const ModelConfig& c_;
  const KernelSet& k_;
  Workspace& ws_;
  const Batch& batch_;
  const KvPool& kv_;
  const bool split_;
  const uint32_t thread_, n_threads_, rows_;
  const bool apart_, whole_;
  const uint32_t first_row_, n_rows_;
  const ItemShare items_;
  const bool keep_rows_;
  const bool heads_by_item_;  // whoever takes an item of attention finishes its heads: a barrier less
  struct {
    bool any = false;
    const float* post_norm = nullptr;
  } owed_;
  Activations in_, attention_in_, ffn_;  // of those rows
};

bool Model::State::run(const Batch& batch, const KvPool& kv) {
  const uint32_t stages = options.ranks ? options.ranks->place().stages : 1;
  const uint32_t n_parts = std::min(stages, static_cast<uint32_t>(batch.tokens.size()));
  if (n_parts == 1) return run_part(batch, kv, {});
  for (uint32_t i = 0; i < n_parts; ++i) {
    const BatchPart& part = parts.part(batch, i, n_parts);
    if (!run_part(part.batch, kv, {i, part.first_row, part.first_logit_row})) return false;
  }
  return true;
}

bool Model::State::run_part(const Batch& batch, const KvPool& kv, PartPlace place) {
  const auto rows = static_cast<uint32_t>(batch.tokens.size());
  for (uint32_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceSpan& span = batch.sequences[s];
    for (uint32_t i = 0; i < span.n_rows; ++i) {
      ws.sequence[span.first_row + i] = s;
      ws.position[span.first_row + i] = span.first_position + i;
    }
  }
  for (uint32_t i = 0; i < config.n_layers; ++i) ws.next_item[size_t{i} * 16].store(0, std::memory_order_relaxed);
  const bool codes = is_quantised(output.packing);
  shape_activations(*kernels, ws.head_acts, static_cast<uint32_t>(batch.logit_rows.size()), codes, !codes);
  const uint32_t n_threads = options.pool->size();
  Pass::Plan plan{options.ranks ? RowShares{.rows = rows} : plan_rows(config, batch, n_threads, kernels->tile_rows),
                  {}};
  for (Activations* acts : {&ws.in_acts, &ws.attention_acts, &ws.ffn_acts}) {
    shape_activations(*kernels, *acts, rows, want_codes, want_f32);
    if (plan.rows.apart) acts->rows_per_tile = plan.rows.tile_rows;
  }
  const uint32_t tensor_ranks = options.ranks ? options.ranks->place().tensor_ranks : 1;
  plan.keep_rows = tensor_ranks > 1 && config.n_experts == 0 && rows > kSmallBatchRows &&
                   ws.in_acts.tiles() >= 2 * tensor_ranks * n_threads;
  plan.attention = plan_attention(ws, config, batch, n_threads, !plan.rows.whole);
  if (plan.attention.split) plan.rows.whole = false;  // few heads: all threads attend to every sequence
  std::atomic<bool> complete{true};
  auto body = [&](uint32_t thread) {
    if (!Pass(*this, batch, kv, place, plan, thread).run()) complete.store(false, std::memory_order_relaxed);
  };
  options.pool->run(body);
  return complete.load();
}

}  // namespace tie::bones
