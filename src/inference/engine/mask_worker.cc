#include "inference/engine/mask_worker.h"

#include <pthread.h>

namespace tie::engine {

MaskWorker::Lane::Lane(const char* name) : thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

MaskWorker::Lane::~Lane() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MaskWorker::Lane::post(Job job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void MaskWorker::Lane::post_all(std::vector<MaskSlot*>& slots) {
  {
    std::lock_guard lock(mutex_);
    for (auto* slot : slots) jobs_.push_back([slot] { advance_now(*slot); });
  }
  slots.clear();
  wake_.notify_one();
}

void MaskWorker::Lane::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;  // stopping, and every slot has been handed back
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
  }
}

MaskWorker::MaskWorker(GrammarCompiler& compiler, uint32_t vocabulary)
    : compiler_(compiler), mask_words_((vocabulary + 31) / 32), masks_("masks"), compilations_("grammars") {}

void MaskWorker::compile(const std::string& grammar, std::vector<MaskSlot*> slots) {
  for (auto* slot : slots) slot->with_engine.store(false, std::memory_order_relaxed);
  compilations_.post([this, &grammar, slots = std::move(slots)] {
    compile_now(grammar, slots);
    for (auto* slot : slots) hand_back(*slot);
  });
}

void MaskWorker::dispose(std::shared_ptr<void> owner) {
  compilations_.post([owner = std::move(owner)]() mutable { owner.reset(); });
}

void MaskWorker::advance(MaskSlot& slot, int32_t token) {
  slot.token = token;
  slot.with_engine.store(false, std::memory_order_relaxed);
  posted_.push_back(&slot);
}

void MaskWorker::flush() {
  if (!posted_.empty()) masks_.post_all(posted_);
}

void MaskWorker::advance_here(MaskSlot& slot, int32_t token) {
  slot.token = token;
  advance_now(slot);
}

void MaskWorker::wait(MaskSlot& slot) {
  while (!slot.ready()) slot.with_engine.wait(false, std::memory_order_acquire);
}

void MaskWorker::hand_back(MaskSlot& slot) {
  slot.with_engine.store(true, std::memory_order_release);
  slot.with_engine.notify_one();
}

void MaskWorker::compile_now(const std::string& grammar, const std::vector<MaskSlot*>& slots) {
  MaskSlot& first = *slots.front();
  auto start = [&]() -> Result<void> {
    TIE_TRY(first.constraint, compiler_.compile(grammar));
    first.mask.resize(mask_words_);
    TIE_TRY(first.state, first.constraint->fill_mask(first.mask));
    for (auto* slot : slots) {
      if (slot == &first) continue;
      TIE_TRY(slot->constraint, first.constraint->clone());
      slot->mask = first.mask;
      slot->state = first.state;
    }
    return {};
  };
  if (auto started = start(); !started) first.error = std::move(started.error());
}

void MaskWorker::advance_now(MaskSlot& slot) {
  auto step = [&]() -> Result<void> {
    TIE_CHECK_OK(slot.constraint->accept(slot.token));
    TIE_TRY(slot.state, slot.constraint->fill_mask(slot.mask));
    return {};
  };
  if (auto done = step(); !done) slot.error = std::move(done.error());
  hand_back(slot);
}

}  // namespace tie::engine
