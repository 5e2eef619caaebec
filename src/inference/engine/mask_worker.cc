#include "inference/engine/mask_worker.h"

namespace tie::engine {

MaskWorker::MaskWorker(GrammarCompiler& compiler, uint32_t vocabulary)
    : compiler_(compiler), mask_words_((vocabulary + 31) / 32), thread_([this] { run(); }) {}

MaskWorker::~MaskWorker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MaskWorker::compile(const std::string& grammar, std::vector<MaskSlot*> slots) {
  for (auto* slot : slots) slot->with_engine.store(false, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back({&grammar, std::move(slots), nullptr});
  }
  wake_.notify_one();
}

void MaskWorker::advance(MaskSlot& slot, int32_t token) {
  slot.token = token;
  slot.with_engine.store(false, std::memory_order_relaxed);
  posted_.push_back(&slot);
}

void MaskWorker::flush() {
  if (posted_.empty()) return;
  {
    std::lock_guard lock(mutex_);
    for (auto* slot : posted_) jobs_.push_back({nullptr, {}, slot});
  }
  posted_.clear();
  wake_.notify_one();
}

void MaskWorker::wait(MaskSlot& slot) {
  while (!slot.ready()) slot.with_engine.wait(false, std::memory_order_acquire);
}

void MaskWorker::hand_back(MaskSlot& slot) {
  slot.with_engine.store(true, std::memory_order_release);
  slot.with_engine.notify_one();
}

void MaskWorker::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;  // stopping, and every slot has been handed back
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    if (job.slot) {
      advance_now(*job.slot);
      hand_back(*job.slot);
    } else {
      compile_now(job);
      for (auto* slot : job.slots) hand_back(*slot);
    }
  }
}

void MaskWorker::compile_now(Job& job) {
  MaskSlot& first = *job.slots.front();
  auto start = [&]() -> Result<void> {
    TIE_TRY(first.constraint, compiler_.compile(*job.grammar));
    for (auto* slot : job.slots) {
      if (slot != &first) {
        TIE_TRY(slot->constraint, first.constraint->clone());
      }
      slot->mask.resize(mask_words_);
    }
    TIE_TRY(first.state, first.constraint->fill_mask(first.mask));
    for (auto* slot : job.slots) {
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
}

}  // namespace tie::engine
